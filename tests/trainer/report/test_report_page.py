"""`trainer report` and `trainer watch`, on real runs of the command line."""

from __future__ import annotations

import dataclasses
import html
import html.parser
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from trainer.checkpoint.folder_lock import claim
from trainer.experiment.cli import main
from trainer.experiment.runs.run_pages import make_server, render
from trainer.metrics import Auc
from trainer.metrics.binary import score_table
from trainer.report import headline
from trainer.report.figures import lines, tables
from trainer.report.run_data import Record, RunData, Series, read_record

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CONFIG = """\
experiment: shop
features:
  columns:
    - {kind: categorical, name: user, dtype: int64}
    - {kind: numeric, name: price}
  label: click
  group: user
  event_time: ts
network: {model: deepfm, dim: 2, hidden: [4]}
loss: {class_path: mindspore.nn.BCEWithLogitsLoss}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 1e-2}}
metrics: [auc, auc/user]
data:
  train: {class_path: trainer.features.RawFiles, init_args: {path: FOLDER/train.csv}}
  valid: {class_path: trainer.features.RawFiles, init_args: {path: FOLDER/train.csv}}
  test: {class_path: trainer.features.RawFiles, init_args: {path: FOLDER/test.csv}}
  stream:
    class_path: trainer.streams.FileStream
    init_args: {path: FOLDER/stream.csv, end: at_last, dead_letter: FOLDER/bad.jsonl}
fit: {epochs: 2, batch_size: 50}
online: {batch_size: 50, window: {class_path: trainer.Window, init_args: {rows: 100}}}
callbacks:
  - {class_path: callbacks.ModelCheckpoint}
  - {class_path: callbacks.Profiler, init_args: {steps: 2, skip: 2, verbose: false}}
"""


def write_rows(path, seed, price, bad=0):  # 400 rows, `bad` of which are set aside
    rng = np.random.default_rng(seed)
    lines = ["user,price,ts,click"]
    for row in range(400):
        user, label = rng.integers(3), rng.integers(2)
        lines.append(f"{user},{rng.normal(price):.3f},{1_700_000_000 + 60 * row},{label}")
    for row in range(bad):
        lines[100 * (row + 1)] = "none,at,all,1"
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder <b>")
    write_rows(folder / "train.csv", 0, price=5.0, bad=1)
    write_rows(folder / "test.csv", 1, price=9.0)
    write_rows(folder / "stream.csv", 2, price=5.0, bad=2)
    text = CONFIG.replace("FOLDER", str(folder))
    (folder / "shop.yaml").write_text(text)
    for command, name in (("fit", "fitted <script>"), ("online", "streamed")):
        assert main([command, str(folder / "shop.yaml"), "--set", f"run_dir={json.dumps(str(folder / name))}"]) == 0
    return folder / "fitted <script>", folder / "streamed"


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    output = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", *map(str, runs), "--output", str(output)]) == 0
    return output.read_text("utf-8")


class Outline(html.parser.HTMLParser):
    """Collects tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._hidden, self._goes_on = [], [], 0, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._goes_on = tag == "wbr"  # a place where a line may break, within a text
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if self._goes_on:
            self.texts[-1] += data
        elif not self._hidden:
            self.texts.append(data)
        self._goes_on = False


def figures(page):
    """Return title -> the values of its lines and bars, as Bokeh will draw them."""
    document = json.loads(html.unescape(_docs(page)))
    (roots,) = [part["roots"] for part in document.values()]
    found = {}
    for root in roots:
        plot = root["attributes"]
        sources = [
            renderer["attributes"]["data_source"]["attributes"]["data"]["entries"]
            for renderer in plot["renderers"]
            if renderer["attributes"].get("name") == "data"
        ]
        found[plot["title"]["attributes"]["text"]] = [dict(entries) for entries in sources]
    return found


def _docs(page):
    """Return the document, which stands in the page as a string of JavaScript."""
    text = re.search(r"const docs_json = '(.*)';\n", page)[1]
    return re.sub(r"\\(.)", r"\1", text)


@pytest.mark.long
def test_the_page_loads_nothing_and_shows_names_as_text(page):
    outline = Outline(page)
    assert not [attributes for _, attributes in outline.tags if "src" in attributes]
    linked = [(tag, attributes["href"].partition(":")[0]) for tag, attributes in outline.tags if "href" in attributes]
    assert {tag for tag, _ in linked} == {"a", "link"}
    assert all(address == "data" if tag == "link" else address.startswith("#") for tag, address in linked)
    assert "@import" not in page
    assert "fitted <script>" in outline.texts
    assert sum(tag == "script" for tag, _ in outline.tags) == 4  # Bokeh's two, the figures, the page's own


@pytest.mark.long
def test_every_section_is_there_and_reached_by_a_link(page):
    outline = Outline(page)
    links = [attributes["href"][1:] for tag, attributes in outline.tags if tag == "a"]
    assert {attributes["id"] for tag, attributes in outline.tags if tag == "h2"} <= set(links)
    headings = ("Runs", "Curves", "Windows", "Predictions", "Features", "Time", "Sparse tables", "Snapshots")
    for heading in (*headings, "Rows set aside", "Configuration", "Environment"):
        assert heading in outline.texts


@pytest.mark.long
def test_figures_are_reached_by_keyboard_and_have_names(page):
    drawn = [attributes for tag, attributes in Outline(page).tags if tag == "figure"]
    assert len(drawn) > 8
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in drawn)


@pytest.mark.long
def test_the_figures_show_what_the_runs_recorded(runs, page):
    drawn = figures(page)
    fitted = read_record(runs[0] / "record.jsonl")
    assert len(drawn["Loss"]) >= 4  # training, epochs and validation of one run, training of the other
    assert fitted.series["val/auc"].steps == [8, 16]
    assert drawn["AUC, validation"][0]["y"] == fitted.series["val/auc"].values
    assert len(drawn["Calibration"]) == 2
    assert set(drawn["Where the time went"][0]["y"]) == {f"{part} · fitted <script>" for part in fitted.seconds}


@pytest.mark.long
def test_predictions_speed_and_tables_have_figures(runs, page):
    drawn, record = figures(page), read_record(runs[0] / "record.jsonl")
    assert drawn["Rows a second"][0]["y"] == record.series["train/samples_per_second"].values
    assert drawn["Share of time spent waiting for data"][0]["y"] == record.series["train/data_wait"].values
    kinds = [curve["label"][0] for curve in drawn["Distribution of predictions"]]
    assert kinds[0].endswith("positives")
    assert sum(drawn["Distribution of predictions"][0]["y"]) == pytest.approx(1)
    section = page.split(">Sparse tables</h2>")[1].split("</section>")[0]
    cells = re.findall(r"<th [^>]*>(.*?)</th>", section)
    assert {"rows", "memory", "admitted"} <= set(cells)
    assert "evicted" not in cells
    assert "0 in every table: evicted" in section
    assert re.search(r'<td class="number">[\d.]+ k?B</td>', section)


@pytest.mark.long
def test_what_never_changes_by_configuration_has_no_figure(runs, page):
    drawn, record = figures(page), read_record(runs[0] / "record.jsonl")
    assert len(set(record.series["train/learning_rate"].values)) == 1
    assert not [title for title in drawn if "earning rate" in title or title == "Rows of sparse tables"]


def test_the_card_begins_with_the_result_beside_the_plain_model():
    series = Series([5, 10, 15], [0.7, 0.8, 0.75], [None] * 3)
    best = {"val_auc": {"value": 0.8, "step": 10, "snapshot": None}}
    plain = {"plain": {"logistic regression": {"auc": 0.77, "log_loss": 0.5}}}
    results = {"val_auc": 0.75, "test_loss": 0.6, "test_auc": 0.79}
    run = RunData("run", record=Record({"val/auc": series}), best=best, results=results, baseline=plain)
    assert dict(headline.numbers(run)) == {
        "AUC, test rows": "0.79",
        "AUC, best of validation, step 10": "0.8",
        "AUC, logistic regression": "0.77",
    }
    assert headline.warning(run) == "Validation became worse after step 10: AUC 0.8 there, 0.75 at step 15."
    run.best["val_log_loss"] = {"value": 0.4, "step": 5, "snapshot": "step_00000005"}  # what the run kept
    run.record.series["val/log_loss"] = Series([5, 15], [0.4, 0.6])
    kept = " step_00000005 has the best weights."
    assert headline.warning(run) == f"Validation became worse after step 5: Log loss 0.4 there, 0.6 at step 15.{kept}"
    better = Record({"val/auc": Series([5, 10], [0.7, 0.8], [None] * 2)})
    assert headline.warning(dataclasses.replace(run, record=better)) == ""
    assert list(headline.numbers(RunData("new"))) == []
    assert [headline.size(count) for count in (512, 24_120, 1_400_000)] == ["512 B", "24.1 kB", "1.4 MB"]


@pytest.mark.long
def test_snapshots_and_environment_are_listed(runs, page):
    snapshots, environment = (
        " ".join(Outline(page.split(f">{name}</h2>")[1].split("</section>")[0]).texts)
        for name in ("Snapshots", "Environment")
    )
    newest = sorted(path.name for path in (runs[0] / "checkpoints").iterdir() if path.is_dir())[-1]
    assert re.search(rf"{newest} [\d.]+ [kM]?B [\d-]+ [\d:]+ UTC .*last", snapshots)
    assert re.search(r"mindspore \d+\.\d+", environment)


@pytest.mark.long
def test_every_figure_zooms_and_says_its_values_under_the_pointer(page):
    (roots,) = [part["roots"] for part in json.loads(html.unescape(_docs(page))).values()]
    assert roots
    for root in roots:
        tools = root["attributes"]["toolbar"]["attributes"]["tools"]
        names = {tool["name"] for tool in tools}
        assert {"BoxZoomTool", "WheelZoomTool", "PanTool", "ResetTool", "HoverTool"} <= names, root["attributes"][
            "title"
        ]
        assert all(tool["attributes"]["tooltips"] for tool in tools if tool["name"] == "HoverTool")


PROBE = """<script>
function check() {
  if (!document.documentElement.dataset.ready) return setTimeout(check, 50);
  const figure = document.querySelector("figure[tabindex]");
  const plot = Bokeh.documents[0].get_model_by_id(figure.querySelector("[data-root-id]").dataset.rootId);
  const range = () => [plot.x_range.start, plot.x_range.end];
  const press = (key) => { figure.dispatchEvent(new KeyboardEvent("keydown", { key })); return range(); };
  const seen = { first: range(), zoomed: press("+"), moved: press("ArrowRight") };
  seen.width = document.documentElement.scrollWidth - innerWidth;
  document.body.insertAdjacentHTML("beforeend", `<pre id="seen">${JSON.stringify(seen)}</pre>`);
}
setTimeout(check, 500);
</script></body></html>"""


@pytest.mark.long
@pytest.mark.server
@pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium")
@pytest.mark.parametrize("width", [390, 1400])
def test_in_a_browser_it_fits_the_window_and_is_zoomed_by_keyboard(page, width, tmp_path):
    (tmp_path / "page.html").write_text(page.rpartition("</body>")[0] + PROBE, "utf-8")
    options = ["--headless", "--no-sandbox", f"--window-size={width},1000", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seen = json.loads(re.search(r'<pre id="seen">({.*?)</pre>', done.stdout)[1])
    (low, high), (start, end) = seen["first"], seen["zoomed"]
    assert low < start < end < high
    assert seen["moved"][0] > start
    assert seen["width"] <= 0, "the page is wider than its window"


def test_the_axis_of_a_constant_lies_around_its_value():
    series = Series([1, 2, 3], [0.001] * 3, [None] * 3)
    plot = lines("learning rate", [RunData("run", record=Record({"train/lr": series}))], ["train/lr"])
    assert 0 < plot.y_range.default_span <= 0.001


def test_many_sparse_tables_are_one_curve_for_each_run():
    def run(name, count):
        grown = [(step, {f"table{n}": {"rows": n + step} for n in range(count)}) for step in (0, 5)]
        return RunData(name, record=Record(tables=grown))

    def labels(*runs):
        return [item.label.value for item in tables("Rows", runs, "rows").legend[0].items]

    assert labels(run("one", 3)) == ["table0", "table1", "table2"]
    assert labels(run("one", 20), run("two", 3)) == ["one 20 tables", "two 3 tables"]
    (curve, *_) = tables("Rows", [run("one", 20)], "rows").renderers
    assert curve.data_source.data["y"] == [sum(range(20)), sum(range(5, 25))]


@pytest.mark.long
def test_windows_are_drawn_over_event_time(runs, page):
    (window, decayed, lifetime) = figures(page)["AUC by window"]
    assert window["label"][0].endswith("streamed window")
    assert 1_700_000_000_000 < window["x"][0] < window["x"][-1] <= 1_700_000_000_000 + 400 * 60_000
    assert window["x"] == decayed["x"] == lifetime["x"]


@pytest.mark.long
def test_drifted_columns_rows_set_aside_and_defaults_are_reported(runs, page):
    drift, _ = figures(page)["Drift between training and test rows"]
    by_column = dict(zip(drift["y"], drift["x"], strict=True))
    assert by_column["price · fitted <script>"] > 1 > by_column["user · fitted <script>"]
    text = " ".join(Outline(page).texts)
    assert re.search(r"2 rows in .*bad\.jsonl", text)
    chosen, defaults = text.split("Options with their default values")
    assert "optimizer.init_args.learning_rate" in chosen.split("What was chosen")[1]
    assert "fit.batch_size" in chosen.split("What was chosen")[1]
    assert "fit.shuffle" not in chosen
    assert {"optimizer.init_args.beta1", "fit.shuffle"} <= set(defaults.split())


@pytest.mark.long
def test_slices_have_a_row_each_and_a_column_for_each_run_that_has_them(runs, page):
    groups = [
        (read_record(run / "record.jsonl").series, group) for run, group in zip(runs, ("val", "window"), strict=True)
    ]
    names = [f"auc/user={user}" for user in range(3)]
    newest = {name: [series[f"{group}/{name}"].values[-1] for series, group in groups] for name in names}
    section = page.split(">Slices</h2>")[1].split("</section>")[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", section)
    for name, values in newest.items():
        place = cells.index(name)
        assert cells[place + 1 : place + 3] == [f"{value:.6g}" for value in values]
    assert re.findall(r"<th [^>]*>(.*?)</th>", section) == ["slice", *map(html.escape, ("fitted <script>", "streamed"))]
    assert "auc/user=0" not in page.split(">Results</h2>")[1].split("</section>")[0]
    assert not any("user=0" in title.lower() for title in figures(page))


@pytest.mark.long
def test_rows_set_aside_of_files_and_streams_are_counted(runs, page):
    section = page.split(">Rows set aside</h2>")[1].split("</section>")[0]
    text = " ".join(Outline(section).texts)
    assert re.search(r"fitted <script>: 1 of 400 rows set aside: .* 1", text)
    assert re.search(r"streamed: 2 of 400 rows set aside", text)


@pytest.mark.long
def test_preparing_is_shown_separately_and_a_profile_is_shown(runs, page):
    record = read_record(runs[1] / "record.jsonl")
    assert "preparing data" in record.seconds
    assert set(record.seconds_beside) == {"reading", "preparing"}
    section = page.split(">Time</h2>")[1].split("</section>")[0]
    text = " ".join(Outline(section).texts)
    assert re.search(r"fitted <script>: a step of [\d.]+ ms, over \d+ steps", text)
    assert "MatMul" in text


@pytest.mark.long
def test_a_damaged_profile_is_left_out(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")
    for text in ('{"steps": 1', "[1]", "{}", '{"steps": 1}'):
        (run / "profile" / "profile.json").write_text(text)
        assert main(["report", str(run), "--output", str(tmp_path / "report.html")]) == 0, text


@pytest.mark.long
def test_the_record_adds_up(runs):
    for run in runs:
        record, metrics = read_record(run / "record.jsonl"), json.loads((run / "metrics.json").read_text())
        assert 0 < sum(record.seconds.values()) <= metrics["seconds"] + 0.01
        _, tables = record.tables[-1]
        assert {table["rows"] for table in tables.values()} == {3}


def test_score_table_is_that_of_the_rows():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=4000).astype(np.float32) * 2
    labels = (rng.random(4000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    metric = Auc()
    metric.update(logits, labels)
    table = score_table([metric])
    assert sum(table["weight"]) == pytest.approx(4000)
    assert sum(table["positives"]) == pytest.approx(labels.sum())
    np.testing.assert_allclose(table["predicted"], table["observed"], atol=0.12)
    assert np.dot(table["predicted"], table["weight"]) == pytest.approx((1 / (1 + np.exp(-logits))).sum(), rel=1e-4)
    assert score_table([Auc(), object()]) is None


@pytest.mark.long
def test_a_run_without_a_record_is_drawn_from_its_history(runs, tmp_path):
    for name in ("config.yaml", "versions.json", "history.json", "metrics.json"):
        (tmp_path / name).write_bytes((runs[0] / name).read_bytes())
    drawn = figures(render([tmp_path]))
    assert drawn["AUC, validation"][0]["x"] == [8, 16]


@pytest.mark.long
def test_a_damaged_record_leaves_out_what_cannot_be_read(runs, tmp_path):
    lines = (runs[0] / "record.jsonl").read_text().splitlines()
    (tmp_path / "record.jsonl").write_text("\n".join(["\x00", "[]", *lines])[:-7])
    assert read_record(tmp_path / "record.jsonl").series["val/auc"].steps == [8, 16]


@pytest.mark.long
def test_a_wrong_run_and_one_given_twice_are_reported(runs, tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["report", str(runs[0]), str(runs[0])]) == 2
    assert "takes each run once" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_that_goes_on_says_how_far_it_has_come(runs, tmp_path):
    for name in ("config.yaml", "versions.json", "record.jsonl"):
        (tmp_path / name).write_bytes((runs[0] / name).read_bytes())
    with claim(tmp_path, "run folder"):
        texts = Outline(render([tmp_path])).texts
    assert texts[texts.index("so far") + 1] == "16 steps"
    assert "last value" in texts


@pytest.mark.long
@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("limit: epochs=2", "finished (limit: epochs=2)"),
        ("stream_end", "finished (stream_end)"),
        ("callback: val_auc has not improved", "stopped early (callback: val_auc has not improved)"),
        ("signal: SIGTERM", "interrupted (signal: SIGTERM)"),
        ("exception: OSError", "failed (exception: OSError)"),
    ],
)
def test_how_a_run_ended_is_said(runs, tmp_path, reason, shown):
    run = shutil.copytree(runs[0], tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "stop_reason": reason}))
    texts = Outline(render([run])).texts
    assert texts[texts.index("state") + 1] == shown


@pytest.mark.long
def test_a_run_whose_newest_process_left_no_results_was_killed(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")

    def state():
        texts = Outline(render([run])).texts
        return texts[texts.index("state") + 1]

    (run / "resumes.json").write_text(json.dumps([{"time": "2001-01-01T00:00:00+00:00"}]))
    assert state() == "finished (limit: epochs=2)"
    (run / "resumes.json").write_text(json.dumps([{"time": "2999-01-01T00:00:00+00:00"}]))
    assert state() == "killed"
    (run / "metrics.json").unlink()
    assert state() == "killed"


@pytest.mark.long
@pytest.mark.server
def test_watch_goes_on_serving_when_a_browser_goes_away(runs, capfd):
    server = make_server([runs[1]], 0, 3)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        for _ in range(3):
            with socket.create_connection(server.server_address) as browser:
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
                browser.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        page = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()
    finally:
        server.shutdown()
        server.server_close()  # waits for the threads of requests
        thread.join()
    assert b"</html>" in page
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.server
def test_watch_serves_this_machine_alone_and_refreshes_while_the_run_goes_on(runs):
    server = make_server([runs[1]], 0, 3)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        assert server.server_address[0] == "127.0.0.1"
        ended = urllib.request.urlopen(url).read().decode()
        (icon,) = [dict(part) for tag, part in Outline(ended).tags if tag == "link"]
        assert icon["rel"] == "icon"
        assert icon["href"].startswith("data:image/svg+xml,")  # else a browser asks for /favicon.ico
        with claim(runs[1], "run folder"):
            going = urllib.request.urlopen(url).read().decode()
        refresh = ("meta", {"http-equiv": "refresh", "content": "3"})
        assert refresh in Outline(going).tags
        assert refresh not in Outline(ended).tags
        assert "running" in Outline(going).texts
        record = runs[1] / "record.jsonl"
        text = record.read_text()
        record.write_text(text + json.dumps({"step": 99, "val/later": 1.5}) + "\n")
        assert figures(urllib.request.urlopen(url).read().decode())["Later, validation"][0]["y"] == [1.5]
        record.write_text(text)
        for request in (f"{url}etc", urllib.request.Request(url, headers={"Host": "elsewhere.example"})):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(request)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

// Gives the figures the colors of the page, and lets the keyboard pan and zoom the focused figure.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const models = () => Bokeh.documents.flatMap((doc) => [...doc._all_models.values()]);

  const columns = () => (innerWidth < 600 ? 1 : 2); // columns of a legend

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const dim = style.getPropertyValue("--dim").trim();
    for (const model of models()) {
      const kind = model.type;
      if (kind.endsWith("Axis")) {
        model.setv({ axis_label_text_color: dim, major_label_text_color: dim, axis_line_color: dim,
          major_tick_line_color: dim, minor_tick_line_color: dim });
        if ("group_text_color" in model.attributes) model.setv({ group_text_color: dim });
      } else if (kind === "Legend") model.setv({ label_text_color: ink, ncols: columns() });
      else if (kind === "Figure" && model.tags.length) {
        const legend = model.below.find((part) => part.type === "Legend");
        const [height, row] = model.tags;
        if (legend) model.setv({ height: height + row * (Math.ceil(legend.items.length / columns()) - 1) });
      }
    }
  }

  const moves = { ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1], "+": [0.1, -0.1], "-": [-0.125, 0.125] };

  function steer(figure) {
    const root = figure.querySelector("[data-root-id]").dataset.rootId;
    const plot = models().find((model) => model.id === root);
    figure.addEventListener("keydown", (event) => {
      const range = plot.x_range;
      if (event.target !== figure || typeof range.start !== "number") return;
      if (event.key === "0") plot.reset.emit();
      else if (event.key in moves) {
        const width = range.end - range.start;
        const [low, high] = moves[event.key];
        range.setv({ start: range.start + low * width, end: range.end + high * width });
      } else return;
      event.preventDefault();
    });
  }

  function begin() {
    if (Bokeh.documents.length === 0 && document.querySelector("[data-root-id]")) return setTimeout(begin, 20);
    paint();
    document.querySelectorAll("figure[tabindex]").forEach(steer);
    document.documentElement.dataset.ready = "true";
  }
  dark.addEventListener("change", paint);
  begin();
})();

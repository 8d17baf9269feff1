from callbacks import LossMonitor


def test_the_loss_is_printed_at_its_cadence_and_validation_when_it_happens(fit, capsys):
    trainer = fit(LossMonitor(every=4), epochs=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1 step 4", "epoch 1 step 8", "step 8"]
    assert lines[1] == f"epoch 1 step 8: loss {trainer.state.outputs.loss:.6g}"
    assert lines[2].startswith("step 8: val_loss ")

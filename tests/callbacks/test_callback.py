import pytest

from callbacks import (
    HOOKS,
    Callback,
    CallbackList,
    EarlyStopping,
    History,
    LambdaCallback,
    LossMonitor,
    ModelCheckpoint,
)


def test_order_is_as_given_then_by_rank():
    given = [ModelCheckpoint("x"), EarlyStopping(), LossMonitor(), History()]
    names = [type(callback).__name__ for callback in CallbackList(given)]
    assert names == ["LossMonitor", "History", "EarlyStopping", "ModelCheckpoint"]


def test_a_hook_that_no_callback_overrides_is_never_called():
    class Silent(Callback):
        pass

    callbacks = CallbackList([Silent(), Callback()])
    assert all(callbacks.bound(hook) == [] for hook in HOOKS)


def test_an_exception_keeps_its_type_and_names_callback_and_hook():
    class Broken(Callback):
        def on_train_begin(self, trainer):
            raise KeyError("gone")

    with pytest.raises(KeyError) as raised:
        CallbackList([Broken()]).call("on_train_begin", None)
    assert (raised.value.failed_callback, raised.value.failed_hook) == ("Broken", "on_train_begin")


def test_a_hook_that_fails_while_a_failure_is_handled_is_logged(fit, caplog):
    """The error that ended the run is raised; that of the hook would go unseen."""

    class Notify(Callback):
        def on_exception(self, trainer):
            raise ConnectionError("no chat")

    with pytest.raises(OSError, match="the disk is gone"):
        fit(Notify(), fail_at=2)
    assert "Notify.on_exception failed: ConnectionError: no chat" in caplog.text


def test_teardown_reaches_everyone_even_when_some_raise():
    reached = []

    def fail(trainer):
        reached.append("first")
        raise OSError("no")

    callbacks = CallbackList(
        [LambdaCallback(teardown=fail), LambdaCallback(teardown=lambda t: reached.append("second"))]
    )
    assert [type(error) for error in callbacks.call_all("teardown", None)] == [OSError]
    assert reached == ["first", "second"]


def test_states_go_back_to_the_callback_they_came_from():
    first, second = EarlyStopping("val_loss"), EarlyStopping("val_auc")
    first.wait, second.wait = 1, 2
    state = CallbackList([first, second]).state_dict()
    others = [EarlyStopping("val_loss"), EarlyStopping("val_auc")]
    unknown = CallbackList(others).load_state_dict({**state, "Gone:0": {}})
    assert [callback.wait for callback in others] == [1, 2]
    assert unknown == ["Gone:0"]

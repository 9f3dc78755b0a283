//! Catches panics of tasks, which the tokio runtime hides.

use std::{
    cell::{Cell, RefCell},
    panic,
    sync::Once,
};

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result of `run`, and the first panic on this thread meanwhile. Panics are not printed.
pub fn catch_panics<T>(run: impl FnOnce() -> T) -> (T, Option<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if LISTENS.get() {
                FIRST.with(|first| {
                    first.borrow_mut().get_or_insert_with(|| panic.to_string());
                });
            } else {
                before(panic);
            }
        }));
    });
    FIRST.take();
    LISTENS.set(true);
    let result = run();
    LISTENS.set(false);
    (result, FIRST.take())
}

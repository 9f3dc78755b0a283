//! Panics of tasks, which a runtime keeps to itself.

use std::{
    cell::{Cell, RefCell},
    panic,
    sync::Once,
};

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `run` comes to, and the first panic on this thread while it went on. They are not printed.
pub fn heard<T>(run: impl FnOnce() -> T) -> (T, Option<String>) {
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

//! Points before and after each effect at which a test can stop or kill this process, or break its environment. Without
//! the feature `system-tests`, which released binaries lack, they do nothing.

use std::fmt;

/// The verb of writes to the journal.
pub const JOURNAL: &str = "write to the journal";

/// Called just before an allowed effect.
#[inline]
pub fn before(verb: &str, target: &dyn fmt::Debug) {
    reached("before", verb, target);
}

/// Called just after an effect, successful or not, before its result is used.
#[inline]
pub fn after(verb: &str, target: &dyn fmt::Debug) {
    reached("after", verb, target);
}

#[cfg(not(feature = "system-tests"))]
#[inline]
fn reached(_when: &str, _verb: &str, _target: &dyn fmt::Debug) {}

/// Reports the checkpoint and waits for one byte. This blocks the thread, and on the main thread the whole agent. Without
/// a listener it returns at once.
#[cfg(feature = "system-tests")]
fn reached(when: &str, verb: &str, target: &dyn fmt::Debug) {
    use std::{
        ffi::OsString,
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
        sync::LazyLock,
    };
    /// Environment variable with the path of the socket.
    const SOCKET: &str = "POD_TEARDOWN_CHECKPOINTS";
    static LISTENER: LazyLock<Option<OsString>> = LazyLock::new(|| std::env::var_os(SOCKET));
    let Some(listener) = &*LISTENER else { return };
    let asked = UnixStream::connect(listener).and_then(|mut stream| {
        stream.write_all(format!("{when}\t{verb}\t{target:?}\n").as_bytes())?;
        stream.read_exact(&mut [0])
    });
    asked.ok();
}

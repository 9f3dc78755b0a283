//! Points at which a test stops, kills or surrounds this process with trouble: before and after each change that it
//! makes. Without the feature `system-tests`, which no binary for use has, they are nothing.

use std::fmt;

/// The verb of what is written to the journal.
pub const JOURNAL: &str = "write to the journal";

/// Just before a change that was allowed: nothing of it is done.
#[inline]
pub fn before(verb: &str, target: &dyn fmt::Debug) {
    reached("before", verb, target);
}

/// Just after a change, whether it went well or not: nothing was made of it yet.
#[inline]
pub fn after(verb: &str, target: &dyn fmt::Debug) {
    reached("after", verb, target);
}

#[cfg(not(feature = "system-tests"))]
#[inline]
fn reached(_when: &str, _verb: &str, _target: &dyn fmt::Debug) {}

/// Says where the process is, and waits for one byte. The whole thread waits, and on the main one the whole agent: the
/// world stands still as it is. Where nobody listens (any more) it goes on.
#[cfg(feature = "system-tests")]
fn reached(when: &str, verb: &str, target: &dyn fmt::Debug) {
    use std::{
        ffi::OsString,
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
        sync::LazyLock,
    };
    /// Names the socket.
    const SOCKET: &str = "POD_TEARDOWN_CHECKPOINTS";
    static LISTENER: LazyLock<Option<OsString>> = LazyLock::new(|| std::env::var_os(SOCKET));
    let Some(listener) = &*LISTENER else { return };
    let asked = UnixStream::connect(listener).and_then(|mut stream| {
        stream.write_all(format!("{when}\t{verb}\t{target:?}\n").as_bytes())?;
        stream.read_exact(&mut [0])
    });
    asked.ok();
}

//! Waits until a process exits, by pidfd.

use std::{future::pending, io};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::io::Interest;

use super::descriptor;

/// Completes when the process that has this pid now has exited.
///
/// # Errors
/// `ESRCH` if there is no such process; else why it cannot be watched.
pub fn wait_for_exit(pid: i32) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    let process = descriptor::watch(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)?;
    Ok(async move {
        if process.readable().await.is_err() {
            // The runtime is shutting down.
            pending::<()>().await;
        }
    })
}

//! Interruptible commands that clean up when they are interrupted, and copies of programs.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a command that was interrupted by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Runs the work until SIGINT, SIGTERM or SIGHUP: then it is dropped with everything that it holds, and the result is
/// `None`.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("wait for SIGHUP")?;
    tokio::select! {
        done = work => done.map(Some),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
        _ = hangup.recv() => Ok(None),
    }
}

/// The path as given, else that of the program of this name beside the running one.
pub fn beside(given: Option<PathBuf>, name: &str) -> Result<PathBuf> {
    match given {
        Some(path) => Ok(path),
        None => Ok(std::env::current_exe()
            .context("find this program")?
            .with_file_name(name)),
    }
}

/// Copies a program with cp. A child that another thread has forked could have this process's own copy open for writing until
/// exec, and the copy could not be executed (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status();
    let status = copied.context("run cp")?;
    ensure!(status.success(), "cp {}: {status}", from.as_ref().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn a_closed_terminal_interrupts_as_ctrl_c_does() {
        // The work starts once the signal handler is installed; before, the signal would kill the test.
        let hang_up = async {
            raise(Signal::SIGHUP).unwrap();
            pending::<Result<()>>().await
        };
        assert_eq!(unless_interrupted(hang_up).await.unwrap(), None);
    }
}

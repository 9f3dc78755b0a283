//! Interruptible commands that clean up when they are interrupted, copies of programs, and processes that end with a test.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a command that was interrupted by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Does the work of the program of this name, whose exit code tells whether it was done; reports why not.
#[allow(clippy::print_stderr, reason = "this is where a command complains")]
pub async fn run(name: &str, work: impl Future<Output = Result<bool>>) -> ExitCode {
    match unless_interrupted(work).await {
        Ok(Some(true)) => ExitCode::SUCCESS,
        Ok(Some(false)) => ExitCode::FAILURE,
        Ok(None) => {
            eprintln!("\n{name}: interrupted; all that it started has been removed");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the work until SIGINT, SIGTERM or SIGHUP: then it is dropped with everything that it holds, and the result is
/// `None`.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
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

/// A process that is killed and waited for on drop.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Killed {
    /// Starts it, with nothing to read.
    pub fn start(command: &mut Command) -> Result<Self> {
        let started = command.stdin(Stdio::null()).spawn();
        Ok(Self(started.with_context(|| format!("start {command:?}"))?))
    }

    /// A process that has a directory as its own.
    pub fn sleep_in(dir: &Path) -> Result<Self> {
        Self::start(Command::new("sleep").arg("1000").current_dir(dir))
    }

    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Waits until it executes this program.
    #[allow(clippy::disallowed_methods, reason = "a real process, in tests without a runtime")]
    pub fn running(self, program: &str) -> Result<Self> {
        let comm = format!("/proc/{}/comm", self.pid());
        while fs::read_to_string(&comm)?.trim() != program {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(self)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
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

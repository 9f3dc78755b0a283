//! A server as a child process that cannot outlive its parent.
#![allow(unsafe_code, reason = "the parent-death signal is set between fork and exec")]

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use nix::sys::{prctl, signal::Signal};
use tokio::time::{Instant, sleep};

const POLL: Duration = Duration::from_millis(50);

/// Number of log lines in an error.
const TAIL_LINES: usize = 20;

/// A child process; killed and reaped on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    /// The kernel signals the child when the *thread* that started it exits, so that thread has to exist as long as this.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Process {
    /// Starts it, and appends its outputs to the file `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let program = PathBuf::from(command.get_program());
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        // SAFETY: prctl is one system call; it allocates nothing and takes no lock, as the time after fork demands.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let (started, child) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Both ends are held by the one who drops the process; an error means that the receiver is dropped.
            let _ = started.send(command.spawn());
            let _ = released.recv();
        });
        let child = child
            .recv()
            .map_err(|_| anyhow!("the thread that starts processes died"))?;
        let child = child.with_context(|| format!("starting {}", program.display()))?;
        let name = program.file_name().unwrap_or_default();
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            log: log.to_owned(),
            child,
            keeper: Some((release, thread)),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("waiting for {}", self.name))
    }

    /// Repeats `check` until it succeeds. Fails with its last error and the end of the log if the process ends, or after
    /// `limit`.
    pub async fn until_ok(&mut self, limit: Duration, check: impl AsyncFn() -> Result<()>) -> Result<()> {
        let late = Instant::now() + limit;
        loop {
            let Err(error) = check().await else { return Ok(()) };
            let state = match self.ended()? {
                Some(status) => format!("ended with {status}"),
                None if Instant::now() > late => format!("was not ready after {limit:?}"),
                None => {
                    sleep(POLL).await;
                    continue;
                }
            };
            let (name, log) = (&self.name, self.log_tail());
            return Err(error.context(format!("{name} {state}; its log ends with:\n{log}")));
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already: then there is nothing to kill, and waiting returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some((release, thread)) = self.keeper.take() {
            drop(release);
            let _ = thread.join();
        }
    }
}

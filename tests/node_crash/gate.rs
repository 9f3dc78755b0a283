//! Stops the agent at each checkpoint until it may continue.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};
use tokio_util::task::AbortOnDropHandle;

use super::point::When;

/// Once dropped, agents at a checkpoint continue.
pub struct Gate {
    path: PathBuf,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    accepting: AbortOnDropHandle<()>,
}

/// An agent at a checkpoint. Dropped, it continues.
pub struct Arrival {
    pub when: When,
    pub verb: String,
    pub target: String,
    /// PID of the agent. Arrivals of a dead agent are ignored.
    pub pid: Option<u32>,
    stream: UnixStream,
}

impl Gate {
    pub fn open(path: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
        let (sender, arrivals) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Some(arrival) = Arrival::read(stream).await {
                        sender.send(arrival).ok();
                    }
                });
            }
        });
        Ok(Self {
            path: path.to_owned(),
            arrivals,
            accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// Path of its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets all agents continue.
    pub fn close(&mut self) {
        self.accepting.abort();
        self.arrivals.close();
        while self.arrivals.try_recv().is_ok() {}
        std::fs::remove_file(&self.path).ok();
    }

    pub async fn next(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}

impl Arrival {
    /// `None` if the agent dies while it sends.
    async fn read(stream: UnixStream) -> Option<Self> {
        let pid = stream.peer_cred().ok()?.pid().and_then(|pid| u32::try_from(pid).ok());
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let mut parts = line.strip_suffix('\n')?.splitn(3, '\t');
        let when = match parts.next()? {
            "before" => When::Before,
            "after" => When::After,
            _ => return None,
        };
        Some(Self {
            when,
            verb: parts.next()?.to_owned(),
            target: parts.next()?.to_owned(),
            pid,
            stream: stream.into_inner(),
        })
    }

    /// Lets the agent continue.
    pub async fn resume(mut self) {
        self.stream.write_all(&[1]).await.ok();
    }
}

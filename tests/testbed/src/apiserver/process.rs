//! The server as a separate process, so that its CPU time is not counted for its client.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use futures::future::{BoxFuture, ready};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::api::{Access, ApiServer};

/// A running `testbed-apiserver`; killed when dropped.
#[derive(Debug)]
pub struct ApiServerProcess {
    url: String,
    _child: Child,
}

impl ApiServerProcess {
    /// Starts the program and waits until it serves.
    pub async fn start(binary: &Path) -> Result<Self> {
        let mut child = Command::new(binary)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let stdout = child.stdout.take().context("take the output of testbed-apiserver")?;
        let line = BufReader::new(stdout).lines().next_line().await;
        match line.context("read the URL of testbed-apiserver")? {
            Some(url) => Ok(Self { url, _child: child }),
            None => bail!("{} ended without printing a URL", binary.display()),
        }
    }
}

impl ApiServer for ApiServerProcess {
    fn access(&self, user: &str) -> Access {
        Access {
            url: self.url.clone(),
            ca: None,
            socket: None,
            user: user.to_owned(),
            token: user.to_owned(),
        }
    }

    /// Not to be had from outside.
    fn forget_history(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(ready(Err(anyhow::anyhow!(
            "a server of its own forgets nothing on request"
        ))))
    }
}

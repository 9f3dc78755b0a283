//! The server as a separate process, so that its CPU time is not counted for its client.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use futures::future::{BoxFuture, ready};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::identity::{ADMIN_TOKEN, COLLECTOR_TOKEN, node_token};
use crate::api::{self, Access, ApiServer};
use crate::rest::{self, Client};

/// A running `testbed-apiserver`; killed when dropped.
#[derive(Debug)]
pub struct ApiServerProcess {
    url: String,
    _child: Child,
}

// === impl ApiServerProcess ===

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

    /// As the administrator.
    pub fn administrator(&self) -> Access {
        self.access(ADMIN_TOKEN)
    }

    /// As the collector, whose requests can be limited.
    pub fn collector(&self) -> Access {
        self.access(COLLECTOR_TOKEN)
    }

    fn access(&self, token: &str) -> Access {
        Access {
            url: self.url.clone(),
            ca: None,
            token: token.to_owned(),
        }
    }
}

impl ApiServer for ApiServerProcess {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn admin_kubeconfig(&self) -> String {
        api::kubeconfig(&self.url, None, "admin", ADMIN_TOKEN)
    }

    fn node_kubeconfig(&self, name: &str) -> String {
        let token = node_token(name);
        api::kubeconfig(&self.url, None, &token, &token)
    }

    fn admin(&self) -> rest::Result<Client> {
        Client::new(&self.url, ADMIN_TOKEN, None)
    }

    fn node(&self, name: &str) -> rest::Result<Client> {
        Client::new(&self.url, &node_token(name), None)
    }

    /// Not to be had from outside.
    fn forget_history(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(ready(Err(anyhow::anyhow!(
            "a server of its own forgets nothing on request"
        ))))
    }
}

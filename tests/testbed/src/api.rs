//! An API server as tests use it: the real one or the one in memory.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::rest::{Client, Result};

/// An API server with an administrator and any number of node identities.
pub trait ApiServer: Send + Sync {
    /// Where it answers.
    fn url(&self) -> String;

    /// A kubeconfig (YAML) of the administrator.
    fn admin_kubeconfig(&self) -> String;

    /// A kubeconfig (YAML) of `system:node:NAME` in the group `system:nodes`.
    fn node_kubeconfig(&self, name: &str) -> String;

    /// A client of the administrator.
    fn admin(&self) -> Result<Client>;

    /// A client of a node's identity.
    fn node(&self, name: &str) -> Result<Client>;

    /// Discards the history, as a server does by compaction: watches and lists at old versions are answered with 410.
    ///
    /// When a real server does this is not defined. Afterwards, only version 1 is certainly too old.
    fn forget_history(&self) -> BoxFuture<'_, anyhow::Result<()>>;
}

/// URL and credentials of a server, for other clients than the testbed's.
#[derive(Debug, Clone)]
pub struct Access {
    /// Where it answers.
    pub url: String,
    /// CA of its certificate; `None` without TLS.
    pub ca: Option<String>,
    /// The bearer token.
    pub token: String,
}

// === impl Access ===

impl Access {
    /// The same as a kubeconfig (YAML).
    pub fn kubeconfig(&self) -> String {
        kubeconfig(&self.url, self.ca.as_deref(), "testbed", &self.token)
    }
}

/// One server for several stages.
impl<S: ApiServer> ApiServer for Arc<S> {
    fn url(&self) -> String {
        S::url(self)
    }

    fn admin_kubeconfig(&self) -> String {
        S::admin_kubeconfig(self)
    }

    fn node_kubeconfig(&self, name: &str) -> String {
        S::node_kubeconfig(self, name)
    }

    fn admin(&self) -> Result<Client> {
        S::admin(self)
    }

    fn node(&self, name: &str) -> Result<Client> {
        S::node(self, name)
    }

    fn forget_history(&self) -> BoxFuture<'_, anyhow::Result<()>> {
        S::forget_history(self)
    }
}

/// A kubeconfig with one server and one bearer token.
pub fn kubeconfig(url: &str, ca_pem: Option<&str>, user: &str, token: &str) -> String {
    kubeconfig_of(url, ca_pem, user, &format!("token: {token}"))
}

/// A kubeconfig with one server and one user with `credentials`: lines of YAML.
pub fn kubeconfig_of(url: &str, ca_pem: Option<&str>, user: &str, credentials: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let ca = ca_pem
        .map(|pem| format!("\n    certificate-authority-data: {}", STANDARD.encode(pem)))
        .unwrap_or_default();
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster:
    server: {url}{ca}
users:
- name: {user}
  user:
    {credentials}
contexts:
- name: testbed
  context: {{cluster: testbed, user: \"{user}\"}}
current-context: testbed
"
    )
}

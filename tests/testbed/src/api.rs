//! An API server as tests use it: the real one or the one in memory.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use futures::future::BoxFuture;

use crate::rest::{Client, Result};

/// The user with all rights.
pub const ADMIN: &str = "admin";

/// An API server with an administrator and any number of node identities.
pub trait ApiServer: Send + Sync {
    /// How [`ADMIN`] or a node's user reaches it.
    fn access(&self, user: &str) -> Access;

    /// Discards the history, as a server does by compaction: watches and lists at old versions are answered with 410.
    ///
    /// When a real server does this is not defined. Afterwards, only version 1 is certainly too old.
    fn forget_history(&self) -> BoxFuture<'_, anyhow::Result<()>>;

    fn url(&self) -> String {
        self.access(ADMIN).url
    }

    fn admin_kubeconfig(&self) -> String {
        self.access(ADMIN).kubeconfig()
    }

    fn node_kubeconfig(&self, node: &str) -> String {
        self.access(&node_user(node)).kubeconfig()
    }

    fn admin(&self) -> Result<Client> {
        self.access(ADMIN).client()
    }

    fn node(&self, node: &str) -> Result<Client> {
        self.access(&node_user(node)).client()
    }
}

/// The user of a node, in the group `system:nodes`.
pub fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// URL and credentials of a user of a server.
#[derive(Debug, Clone)]
pub struct Access {
    pub url: String,
    /// CA of its certificate; `None` without TLS.
    pub ca: Option<String>,
    /// Where the testbed's client reaches it, if not by the URL.
    pub socket: Option<PathBuf>,
    pub user: String,
    pub token: String,
}

impl Access {
    pub fn kubeconfig(&self) -> String {
        kubeconfig(&self.url, self.ca.as_deref(), &self.user, &self.token)
    }

    pub fn client(&self) -> Result<Client> {
        Client::over(self.socket.as_deref(), &self.url, &self.token, self.ca.as_deref())
    }
}

/// One server for several stages.
impl<S: ApiServer> ApiServer for Arc<S> {
    fn access(&self, user: &str) -> Access {
        S::access(self, user)
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
    // Without one, a client reads all authorities of the machine at its start, which takes most of a short test's time.
    static UNUSED: LazyLock<String> = LazyLock::new(|| {
        let authority = rcgen::generate_simple_self_signed(vec!["testbed".to_owned()]);
        authority.expect("a certificate").cert.pem()
    });
    let ca = STANDARD.encode(ca_pem.unwrap_or(&UNUSED));
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster:
    server: {url}
    certificate-authority-data: {ca}
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

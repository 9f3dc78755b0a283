//! The server as tests use it, behind a trait.

use futures::future::{BoxFuture, ready};

use super::MemApiServer;
use super::identity::{self, ADMIN_TOKEN};
use crate::api::ApiServer;
use crate::rest::{Client, Result};

impl ApiServer for MemApiServer {
    fn url(&self) -> String {
        self.url()
    }

    fn admin_kubeconfig(&self) -> String {
        self.admin_kubeconfig()
    }

    fn node_kubeconfig(&self, name: &str) -> String {
        self.node_kubeconfig(name)
    }

    fn admin(&self) -> Result<Client> {
        self.client(ADMIN_TOKEN)
    }

    fn node(&self, name: &str) -> Result<Client> {
        self.client(&identity::node_token(name))
    }

    fn forget_history(&self) -> BoxFuture<'_, anyhow::Result<()>> {
        self.compact();
        Box::pin(ready(Ok(())))
    }
}

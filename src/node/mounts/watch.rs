//! Waits for changes of the mount table.

use std::{future::pending, os::fd::OwnedFd, path::Path};

use tokio::io::{Interest, unix::AsyncFd};

use super::source::open_kernels;
use crate::node::{
    descriptor,
    fault::{Fault, errno},
};

/// Reports changes of the mount table since its creation.
///
/// Create the watch first, then read the table, then wait: no change is missed.
#[derive(Debug)]
pub struct MountWatch {
    kernel: Option<AsyncFd<OwnedFd>>,
}

// === impl MountWatch ===

impl MountWatch {
    pub(super) fn open(mountinfo: &Path) -> Result<Self, Fault> {
        let fault = |error: std::io::Error| Fault::new("watch", mountinfo, errno(&error));
        let kernel = open_kernels(mountinfo).map_err(fault)?;
        let watched = kernel.map(|file| descriptor::watch(file, Interest::PRIORITY));
        Ok(Self {
            kernel: watched.transpose().map_err(fault)?,
        })
    }

    /// Waits for a mount or unmount since the last call. Pends forever if the table is an ordinary file, which reports
    /// nothing.
    pub async fn changed(&mut self) {
        let Some(kernel) = &self.kernel else {
            return pending().await;
        };
        match kernel.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime is shutting down.
            Err(_) => pending().await,
        }
    }
}

//! A kubelet's garbage collection: once a minute it removes dead sandboxes and containers, and log directories without a pod.
//! Between the last stop of a pod and its last status, this costs a pod without containers its address, so that the result
//! would be random.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

const PERIOD: Duration = Duration::from_secs(60);
/// Time to terminate pods without containers, with a margin for a machine under load.
const MARGIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(300);

/// Detects them.
pub struct Sweeps {
    last: watch::Receiver<Option<Instant>>,
    _watching: JoinSet<()>,
}

impl Sweeps {
    /// Creates a log directory without a pod, again after each removal.
    pub fn watch(pod_logs: &Path) -> Result<Self> {
        let without_pod = pod_logs.join("testbed_absent_00000000-0000-4000-8000-000000000000");
        fs::create_dir(&without_pod).with_context(|| format!("create {}", without_pod.display()))?;
        let (swept, last) = watch::channel(None);
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            loop {
                sleep(POLL).await;
                // Where it was swept away.
                if fs::create_dir(&without_pod).is_ok() {
                    swept.send_replace(Some(Instant::now()));
                }
            }
        });
        Ok(Self {
            last,
            _watching: watching,
        })
    }

    /// Waits until the next one is not near.
    pub fn wait_for_quiet(&self) -> bool {
        self.last.borrow().is_some_and(|last| last.elapsed() < PERIOD - MARGIN)
    }
}

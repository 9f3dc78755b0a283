//! Reads the unit of a kubelet that does not work: its state from systemd, its last error from the journal, and what its process
//! waits for. Only reads, within [`LIMIT`].

use std::{path::Path, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::{task::spawn_blocking, time::timeout};

use super::{cgroups::Survivor, systemd::Systemd};
use crate::model::kubelet_unit::{KubeletUnit, MainProcess};

mod journal;
mod last_error;

use last_error::last_error;

/// Units of a kubelet, and of programs that embed one.
const UNITS: [&str; 7] = [
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "k0sworker.service",
    "snap.microk8s.daemon-kubelite.service",
];
/// Time for all of it. A later answer is of no use: it is read again soon.
const LIMIT: Duration = Duration::from_secs(8);

/// Reads the unit of the kubelet. The argument is the unit of the last known kubelet process.
pub type ReadUnit = Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Option<KubeletUnit>> + Send + Sync>;

/// Reads from this node's systemd and journal.
pub fn on_this_node(proc: &Path) -> ReadUnit {
    let proc: Arc<Path> = proc.into();
    Arc::new(move |learned| {
        let proc = Arc::clone(&proc);
        async move { read(&Systemd::default(), Path::new(journal::PROGRAM), &proc, learned).await }.boxed()
    })
}

/// The first unit that systemd knows: the learned one, or one of [`UNITS`]. `None` without systemd or such a unit, and if systemd
/// does not answer in time.
async fn read(systemd: &Systemd, journalctl: &Path, proc: &Path, learned: Option<String>) -> Option<KubeletUnit> {
    let units = learned.into_iter().chain(UNITS.map(str::to_owned));
    timeout(LIMIT, async {
        for unit in units {
            if let Some(unit) = systemd.kubelet_unit(&unit).await.ok()? {
                return Some(with_reason(unit, journalctl, proc).await);
            }
        }
        None
    })
    .await
    .ok()?
}

/// Adds the state of the main process and the last error.
async fn with_reason(mut unit: KubeletUnit, journalctl: &Path, proc: &Path) -> KubeletUnit {
    if let Some(pid) = unit.main_process.as_ref().map(|process| process.pid) {
        let proc = proc.to_owned();
        let read = spawn_blocking(move || Survivor::read_in(&proc, pid));
        unit.main_process = read.await.ok().map(|state| MainProcess {
            pid,
            is_stopped: state.is_stopped,
            waits_in: state.waits_in,
        });
    }
    if unit.has_reason_in_journal() {
        match journal::last_entries(journalctl, &unit.unit).await {
            // The current run of a unit that is restarted has maybe not failed yet.
            Ok(entries) if unit.restarts > 0 => unit.last_error = last_error(&entries, 2),
            // A user has started it: what it wrote before may be repaired.
            Ok(mut entries) => {
                entries.retain(|entry| entry.run == unit.run);
                unit.last_error = last_error(&entries, 1);
            }
            Err(why) => unit.journal_unread = Some(why.to_string()),
        }
    }
    unit
}

#[cfg(test)]
mod tests;

//! Unmounts in rounds, because one unmount may propagate to other mounts or uncover one.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;

use super::{
    Mount, MountTable,
    hanging::{Hanging, Mounted},
    unmount::unmount_seen,
};
use crate::node::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    holders::holders,
    unmounts::{Call, UnmountBackend},
};

/// Limit of rounds, against a process that keeps mounting.
const MAX_ROUNDS: usize = 16;

/// What to unmount.
#[derive(Debug)]
pub enum UnmountScope {
    /// At or below one of these paths.
    AtOrBelow(Vec<PathBuf>),
    /// Below this path, but not on it.
    Below(PathBuf),
}

/// Progress of the rounds. Completion is only proven by a table requested after the last unmount.
#[derive(Debug)]
pub struct UnmountRounds {
    scope: UnmountScope,
    report: UnmountReport,
    /// Faults of the last round, by mount ID.
    faults: HashMap<u64, Fault>,
    /// Mounts tried in the last round. IDs alone are not enough: the kernel reuses them at once.
    tried: Vec<Mount>,
    rounds: usize,
    /// Busy mounts without a known holder were retried once.
    has_retried: bool,
}

/// Result of the rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnmountReport {
    /// Number of unmounts; propagation may have removed more.
    pub unmounted: usize,
    /// The last mount table.
    pub table: Arc<MountTable>,
}

/// Mounts that remain, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillMounted {
    /// One for each remaining mount.
    pub faults: Vec<Fault>,
    /// What was unmounted before.
    pub report: UnmountReport,
}

// === impl UnmountScope ===

impl UnmountScope {
    /// The mounts in this scope, in unmount order.
    fn mounts(&self, table: &MountTable) -> Vec<Mount> {
        match self {
            Self::AtOrBelow(paths) => table.mounts_at_or_below(paths),
            Self::Below(dir) => table.mounts_below(dir),
        }
    }

    fn contains(&self, path: &Path) -> bool {
        match self {
            Self::AtOrBelow(paths) => paths.iter().any(|root| path.starts_with(root)),
            Self::Below(dir) => path != dir && path.starts_with(dir),
        }
    }
}

// === impl UnmountRounds ===

impl UnmountRounds {
    pub(super) fn new(scope: UnmountScope) -> Self {
        Self {
            scope,
            report: UnmountReport::default(),
            faults: HashMap::new(),
            tried: Vec::new(),
            rounds: 0,
            has_retried: false,
        }
    }

    /// Runs a round based on a table that may be outdated. Failed unmounts are retried, unless one hangs.
    pub(super) fn unmount(&mut self, table: &MountTable, effects: &Effects) {
        let remaining = self.scope.mounts(table);
        self.unmount_each(remaining, table, effects);
        if !self.faults.values().any(|fault| matches!(fault.cause, Cause::Hangs(_))) {
            self.tried.clear();
        }
    }

    /// Runs the next round, based on a table requested after the last one. Blocks.
    pub fn run_next(
        mut self,
        table: Result<Arc<MountTable>, Fault>,
        effects: &Effects,
    ) -> ControlFlow<Result<UnmountReport, StillMounted>, Self> {
        match table {
            Ok(table) => self.report.table = table,
            Err(fault) => return ControlFlow::Break(self.still_mounted(vec![fault])),
        }
        let table = Arc::clone(&self.report.table);
        let remaining = self.scope.mounts(&table);
        if remaining.is_empty() {
            // The kernel removes a mount from the table before it writes dirty data to the server.
            let hanging = hanging(effects, |path| self.scope.contains(path));
            return ControlFlow::Break(if hanging.is_empty() {
                Ok(self.report)
            } else {
                self.still_mounted(hanging)
            });
        }
        if remaining == self.tried || self.rounds > MAX_ROUNDS || self.faults.values().any(Fault::is_blocked) {
            explain_busy(&mut self.faults, &remaining, &table, effects);
            // A short-lived user, such as an exiting process, may have released it meanwhile. No event reports that.
            if !self.has_retried && self.faults.values().any(is_busy_without_known_holder) {
                self.has_retried = true;
                self.unmount_each(remaining, &table, effects);
                return ControlFlow::Continue(self);
            }
            let unexplained = |mount: &Mount| Fault::new("unmount", &mount.path, Cause::StillMounted);
            let faults = remaining
                .iter()
                .map(|it| self.faults.remove(&it.id).unwrap_or_else(|| unexplained(it)))
                .collect();
            return ControlFlow::Break(self.still_mounted(faults));
        }
        self.unmount_each(remaining, &table, effects);
        ControlFlow::Continue(self)
    }

    fn unmount_each(&mut self, remaining: Vec<Mount>, table: &MountTable, effects: &Effects) {
        self.rounds += 1;
        self.faults.clear();
        for mount in &remaining {
            match unmount_seen(mount, table, effects) {
                Ok(Outcome::Done) => self.report.unmounted += 1,
                Ok(Outcome::Nothing) => {}
                Err(mut fault) => {
                    if let Cause::Hangs(hanging) = &mut fault.cause {
                        hanging.what.get_or_insert_with(|| mount.into());
                    }
                    self.faults.insert(mount.id, fault);
                }
            }
        }
        self.tried = remaining;
    }

    fn still_mounted(self, faults: Vec<Fault>) -> Result<UnmountReport, StillMounted> {
        Err(StillMounted {
            faults,
            report: self.report,
        })
    }
}

/// Whether the mount is busy and the search found neither a process nor a nested mount. The search may be incomplete.
fn is_busy_without_known_holder(fault: &Fault) -> bool {
    matches!(&fault.cause, Cause::Busy(holders) if holders.processes.is_empty() && holders.nested.is_empty())
}

/// Adds the holders to busy mounts.
fn explain_busy(faults: &mut HashMap<u64, Fault>, remaining: &[Mount], table: &Arc<MountTable>, effects: &Effects) {
    let unmounting = effects.unmounting();
    if matches!(unmounting.backend, UnmountBackend::Simulated(_)) {
        return;
    }
    let is_busy = |fault: &Fault| fault.cause == Cause::Errno(Errno::EBUSY);
    let busy = remaining
        .iter()
        .filter(|mount| faults.get(&mount.id).is_some_and(is_busy));
    let busy: Vec<Mount> = busy.cloned().collect();
    for (id, holders) in holders(
        Path::new("/proc"),
        table,
        &busy,
        &unmounting.in_flight,
        Call::FindHolders,
    ) {
        if let Some(fault) = faults.get_mut(&id) {
            fault.cause = Cause::Busy(Box::new(holders));
        }
    }
}

/// Unmounts in this scope that have not returned. The table may not show them any more, while dirty data is still being
/// written.
pub fn hanging(effects: &Effects, within: impl Fn(&Path) -> bool) -> Vec<Fault> {
    let unmounts = effects.unmounting().in_flight.unmounts(within).into_iter();
    unmounts
        .map(|(path, hang)| {
            let (since, what) = (hang.since, Mounted::topmost_on(&path));
            Fault::new("unmount", path, Hanging { since, what })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::holders::Holders;

    #[test]
    fn busy_mount_is_retried_once_unless_its_holder_is_known() {
        let is_retried = |cause: Cause| is_busy_without_known_holder(&Fault::new("unmount", "/v", cause));
        let busy = |holders: Holders| Cause::Busy(Box::new(holders));
        assert!(is_retried(busy(Holders::default())));
        assert!(is_retried(busy(Holders {
            is_incomplete: true,
            ..Holders::default()
        })));
        assert!(!is_retried(busy(Holders {
            nested: vec!["/v/nested".into()],
            ..Holders::default()
        })));
        assert!(!is_retried(Cause::Errno(Errno::EBUSY)));
    }
}

//! Unmounting in rounds, because one unmount may take others along, or uncover a mount.

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
    holders::{Holders, holders},
    unmounts::UnmountBackend,
};

/// UnmountRounds before something that keeps mounting is left to the next attempt.
const ROUNDS: usize = 16;

/// Where everything is to be unmounted.
#[derive(Debug)]
pub enum UnmountScope {
    /// On one of these or below it.
    AtOrBelow(Vec<PathBuf>),
    /// Below it, but not on it.
    Below(PathBuf),
}

/// What was unmounted so far. Only a table that was asked for after the last unmount ends it.
#[derive(Debug)]
pub struct UnmountRounds {
    places: UnmountScope,
    report: UnmountReport,
    /// What came of the last round, by mount.
    faults: HashMap<u64, Fault>,
    /// What the last round tried. Their ids alone do not tell: the kernel gives one away again at once.
    tried: Vec<Mount>,
    rounds: usize,
    /// What was in use by nobody who could be found was tried once more.
    tried_once_more: bool,
}

/// What a round of unmounting did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnmountReport {
    /// How many mounts were unmounted by hand; propagation may have taken others along.
    pub unmounted: usize,
    /// How many a dry run kept back.
    pub withheld: usize,
    /// What was mounted when nothing was left to do.
    pub table: Arc<MountTable>,
}

/// What stayed mounted although it was tried, and what is known of the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillMounted {
    /// One for every mount that is left, with its path.
    pub faults: Vec<Fault>,
    /// What went well before.
    pub report: UnmountReport,
}

// === impl UnmountScope ===

impl UnmountScope {
    /// What is mounted in them, in the order in which it has to be unmounted.
    fn mounts(&self, table: &MountTable) -> Vec<Mount> {
        match self {
            Self::AtOrBelow(places) => table.mounts_at_or_below(places),
            Self::Below(dir) => table.mounts_below(dir),
        }
    }

    fn hold(&self, path: &Path) -> bool {
        match self {
            Self::AtOrBelow(places) => places.iter().any(|place| path.starts_with(place)),
            Self::Below(dir) => path != dir && path.starts_with(dir),
        }
    }
}

// === impl UnmountRounds ===

impl UnmountRounds {
    pub(super) fn new(places: UnmountScope) -> Self {
        Self {
            places,
            report: UnmountReport::default(),
            faults: HashMap::new(),
            tried: Vec::new(),
            rounds: 0,
            tried_once_more: false,
        }
    }

    /// A round by a table that may be an old one. What fails in it is tried again, but not beside what hangs.
    pub(super) fn unmount(&mut self, table: &MountTable, effects: &Effects) {
        let left = self.places.mounts(table);
        self.unmount_each(left, table, effects);
        if !self.faults.values().any(|fault| matches!(fault.cause, Cause::Hangs(_))) {
            self.tried.clear();
        }
    }

    /// The next round, by a table that was asked for after the last one. Blocks.
    pub fn run_next(
        mut self,
        table: Result<Arc<MountTable>, Fault>,
        effects: &Effects,
    ) -> ControlFlow<Result<UnmountReport, StillMounted>, Self> {
        match table {
            Ok(table) => self.report.table = table,
            Err(fault) => return ControlFlow::Break(self.stays(vec![fault])),
        }
        let table = Arc::clone(&self.report.table);
        let left = self.places.mounts(&table);
        if left.is_empty() {
            // The kernel takes a mount off the table before it brings to the server what was written.
            let hanging = hanging(effects, |path| self.places.hold(path));
            return ControlFlow::Break(if hanging.is_empty() {
                Ok(self.report)
            } else {
                self.stays(hanging)
            });
        }
        if left == self.tried || self.rounds > ROUNDS || self.faults.values().any(Fault::is_blocked) {
            explain_busy(&mut self.faults, &left, &table, effects);
            // Whoever used it for a moment, such as a process that was just ending, has let go of it meanwhile. Nothing
            // would tell of that.
            if !self.tried_once_more && self.faults.values().any(is_in_use_by_nobody) {
                self.tried_once_more = true;
                self.unmount_each(left, &table, effects);
                return ControlFlow::Continue(self);
            }
            let unexplained = |mount: &Mount| Fault::new("unmount", &mount.path, Cause::StillMounted);
            let faults = left
                .iter()
                .map(|it| self.faults.remove(&it.id).unwrap_or_else(|| unexplained(it)))
                .collect();
            return ControlFlow::Break(self.stays(faults));
        }
        self.unmount_each(left, &table, effects);
        if self.report.withheld > 0 {
            return ControlFlow::Break(Ok(self.report));
        }
        ControlFlow::Continue(self)
    }

    fn unmount_each(&mut self, left: Vec<Mount>, table: &MountTable, effects: &Effects) {
        self.rounds += 1;
        self.faults.clear();
        for mount in &left {
            match unmount_seen(mount, table, effects) {
                Ok(Outcome::Done) => self.report.unmounted += 1,
                Ok(Outcome::Nothing) => {}
                Ok(Outcome::Withheld) => self.report.withheld += 1,
                Err(mut fault) => {
                    if let Cause::Hangs(hanging) = &mut fault.cause {
                        hanging.what.get_or_insert_with(|| mount.into());
                    }
                    self.faults.insert(mount.id, fault);
                }
            }
        }
        self.tried = left;
    }

    fn stays(self, faults: Vec<Fault>) -> Result<UnmountReport, StillMounted> {
        Err(StillMounted {
            faults,
            report: self.report,
        })
    }
}

fn is_in_use_by_nobody(fault: &Fault) -> bool {
    matches!(&fault.cause, Cause::Busy(holders) if **holders == Holders::default())
}

/// Finds who keeps mounts in use, where that is why they stay.
fn explain_busy(faults: &mut HashMap<u64, Fault>, left: &[Mount], table: &Arc<MountTable>, effects: &Effects) {
    let unmounting = effects.unmounting();
    if matches!(unmounting.backend, UnmountBackend::Simulated(_)) {
        return;
    }
    let is_busy = |fault: &Fault| fault.cause == Cause::Errno(Errno::EBUSY);
    let busy = left.iter().filter(|mount| faults.get(&mount.id).is_some_and(is_busy));
    let busy: Vec<Mount> = busy.cloned().collect();
    for (id, holders) in holders(Path::new("/proc"), table, &busy, &unmounting.in_flight) {
        if let Some(fault) = faults.get_mut(&id) {
            fault.cause = Cause::Busy(Box::new(holders));
        }
    }
}

/// The unmounts within these places that have not come back. The table may show nothing of them any more: what was written
/// is still on its way.
pub fn hanging(effects: &Effects, within: impl Fn(&Path) -> bool) -> Vec<Fault> {
    let unmounts = effects.unmounting().in_flight.unmounts(within).into_iter();
    unmounts
        .map(|(path, hang)| {
            let (since, what) = (hang.since, Mounted::on(&path));
            Fault::new("unmount", path, Hanging { since, what })
        })
        .collect()
}

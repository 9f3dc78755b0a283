//! Unmounts in rounds, because one unmount may propagate to other mounts or uncover one.

use std::{collections::HashMap, path::Path, sync::Arc};

use nix::errno::Errno;

use super::{
    Mount, MountTable, Mounts,
    hanging::{Hanging, Mounted},
    unmount::unmount,
};
use crate::node::{
    effects::Effects,
    fault::{Cause, Fault},
    holders::holders,
    host::PROC,
    unmounts::{Call, UnmountBackend},
};

/// Limit of rounds, against a process that keeps mounting.
const MAX_ROUNDS: usize = 16;

// === impl Mounts ===

impl Mounts {
    /// Unmounts everything below `dir`, but not `dir` itself. As [`Self::unmount_all_at`].
    pub fn unmount_all_below(&self, dir: &Path, effects: &Effects) -> Result<Arc<MountTable>, Vec<Fault>> {
        self.unmount_all(&|path| path != dir && path.starts_with(dir), effects)
    }

    /// Unmounts everything at or below `paths`. Returns the last mount table. Blocks.
    ///
    /// # Errors
    /// A fault for each mount that remains.
    pub fn unmount_all_at<P: AsRef<Path>>(
        &self,
        paths: &[P],
        effects: &Effects,
    ) -> Result<Arc<MountTable>, Vec<Fault>> {
        self.unmount_all(&|path| paths.iter().any(|root| path.starts_with(root)), effects)
    }

    /// The first round uses a recent table, which may be outdated because of other unmounts, and still be right about this scope.
    /// Completion is only proven by a table that was read after the last unmount.
    fn unmount_all(
        &self,
        is_in_scope: &dyn Fn(&Path) -> bool,
        effects: &Effects,
    ) -> Result<Arc<MountTable>, Vec<Fault>> {
        // IDs alone are not enough: the kernel reuses them at once.
        let in_scope = |table: &MountTable| table.unmount_order(|mount| is_in_scope(&mount.path));
        let mut tried = in_scope(&self.read_recent());
        let mut faults = unmount_each(&tried, effects);
        if !faults.values().any(|fault| matches!(fault.cause, Cause::Hangs(_))) {
            tried.clear();
        }
        let (mut rounds, mut has_retried) = (1, false);
        loop {
            let table = self.read()?;
            let remaining = in_scope(&table);
            if remaining.is_empty() {
                // The kernel removes a mount from the table before it writes dirty data to the server.
                let hanging = hanging(effects, is_in_scope);
                return if hanging.is_empty() { Ok(table) } else { Err(hanging) };
            }
            if remaining == tried || rounds > MAX_ROUNDS || faults.values().any(Fault::is_blocked) {
                explain_busy(&mut faults, &remaining, &table, effects);
                // A short-lived user, such as an exiting process, may have released it meanwhile. No event reports that.
                if has_retried || !faults.values().any(is_busy_without_known_holder) {
                    let unexplained = |mount: &Mount| Fault::new("unmount", &mount.path, Cause::StillMounted);
                    let remaining = remaining.iter();
                    let faults = remaining.map(|it| faults.remove(&it.id).unwrap_or_else(|| unexplained(it)));
                    return Err(faults.collect());
                }
                has_retried = true;
            }
            faults = unmount_each(&remaining, effects);
            tried = remaining;
            rounds += 1;
        }
    }
}

/// The faults of mounts that could not be unmounted, by mount ID.
fn unmount_each(mounts: &[Mount], effects: &Effects) -> HashMap<u64, Fault> {
    let mut faults = HashMap::new();
    for mount in mounts {
        if let Err(mut fault) = unmount(&mount.path, effects) {
            if let Cause::Hangs(hanging) = &mut fault.cause {
                hanging.what.get_or_insert_with(|| mount.into());
            }
            faults.insert(mount.id, fault);
        }
    }
    faults
}

/// Whether the mount is busy and the search found neither a process nor a nested mount. The search may be incomplete.
fn is_busy_without_known_holder(fault: &Fault) -> bool {
    matches!(&fault.cause, Cause::Busy(holders) if holders.processes.is_empty() && holders.nested.is_empty())
}

/// Adds the holders to busy mounts.
fn explain_busy(faults: &mut HashMap<u64, Fault>, remaining: &[Mount], table: &Arc<MountTable>, effects: &Effects) {
    let unmounting = &effects.unmounting;
    if matches!(unmounting.backend, UnmountBackend::Simulated(_)) {
        return;
    }
    let is_busy = |fault: &Fault| fault.cause == Cause::Errno(Errno::EBUSY);
    let is_busy = |mount: &&Mount| faults.get(&mount.id).is_some_and(is_busy);
    let busy: Vec<Mount> = remaining.iter().filter(is_busy).cloned().collect();
    let (proc, in_flight) = (Path::new(PROC), &unmounting.in_flight);
    for (id, holders) in holders(proc, table, &busy, in_flight, Call::FindHolders) {
        if let Some(fault) = faults.get_mut(&id) {
            fault.cause = Cause::Busy(Box::new(holders));
        }
    }
}

/// Unmounts in this scope that have not returned. The table may not show them any more, while dirty data is still being
/// written.
pub fn hanging(effects: &Effects, within: impl Fn(&Path) -> bool) -> Vec<Fault> {
    let unmounts = effects.unmounting.in_flight.unmounts(within).into_iter();
    let hanging = unmounts.map(|(path, since)| {
        let what = Mounted::topmost_on(&path);
        Fault::new("unmount", path, Cause::Hangs(Box::new(Hanging { since, what })))
    });
    hanging.collect()
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

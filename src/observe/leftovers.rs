//! What is left of a pod, from what a teardown would still do. Pure.

use crate::{
    model::observation::{Leftover, LeftoverKind},
    teardown::{
        bounded_read::Fact,
        plan::{Plan, PlannedAction},
    },
};

/// Leftovers of one pod that are kept.
const MAX_LEFTOVERS: usize = 32;

/// What a plan shows of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// What still exists.
    pub leftovers: Vec<Leftover>,
    /// What could not be read.
    pub unknown: Vec<String>,
}

/// Leftovers of a pod whose object is deleted, or of a terminal pod that stays: that one may have exited containers, sandboxes that
/// are stopped, its directory and its logs.
pub(super) fn left(
    plan: &Plan,
    mounts: &Fact<Vec<(String, String)>>,
    volumes: Fact<Vec<Leftover>>,
    is_deleted: bool,
    runs: impl Fn(&str) -> bool,
) -> Left {
    let mut left = Left {
        leftovers: Vec::new(),
        unknown: plan.unknown.clone(),
    };
    // A mount that belongs to no volume is not in the plan.
    let mounts = mounts
        .as_ref()
        .map_err(|why| left.unknown.push(format!("its mounts: {why}")));
    let mounts = mounts
        .ok()
        .into_iter()
        .flatten()
        .map(|(path, fs_type)| mount(path, fs_type));
    let planned = plan.actions().filter_map(|(_, action)| leftover(action));
    // Volumes that the pod's directory still names are in the plan.
    let volumes = volumes.map_err(|why| left.unknown.push(format!("its staged volumes: {why}")));
    for leftover in mounts.chain(planned).chain(volumes.ok().into_iter().flatten()) {
        if is_deleted || !may_stay(&leftover, &runs) {
            let is_new = left.leftovers.iter().all(|other| other.object != leftover.object);
            if is_new && left.leftovers.len() < MAX_LEFTOVERS {
                left.leftovers.push(leftover);
            }
        }
    }
    left
}

/// Whether a kubelet keeps this until the object of a terminal pod is deleted.
fn may_stay(leftover: &Leftover, runs: impl Fn(&str) -> bool) -> bool {
    match leftover.kind {
        LeftoverKind::Container | LeftoverKind::Sandbox => !runs(&leftover.object),
        LeftoverKind::Directory => true,
        LeftoverKind::Mount | LeftoverKind::Volume | LeftoverKind::Claim | LeftoverKind::Cgroup => false,
    }
}

fn mount(path: &str, fs_type: &str) -> Leftover {
    Leftover::new(LeftoverKind::Mount, path, format!("unmount it ({fs_type})"))
}

/// A volume that is still staged.
pub(super) fn staged_volume(path: &str, driver: &str) -> Leftover {
    Leftover::new(LeftoverKind::Volume, path, format!("NodeUnstageVolume by {driver}"))
}

fn leftover(action: &PlannedAction) -> Option<Leftover> {
    use LeftoverKind::{Cgroup, Claim, Container, Directory, Mount, Sandbox, Volume};
    let driver = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "an unknown driver".to_owned());
    let (kind, object, detail) = match action {
        PlannedAction::RemoveContainer { container, id } => (Container, id, format!("container {container}")),
        PlannedAction::RemoveSandbox { id } => (Sandbox, id, "remove it".to_owned()),
        PlannedAction::UnprepareClaim { claim, drivers } => {
            (Claim, claim, format!("unprepare it by {}", drivers.join(", ")))
        }
        PlannedAction::Unmount { path, fs_type } => return Some(mount(path, fs_type)),
        PlannedAction::UnmapDevice { path } => (Mount, path, "unmount it, and detach its loop device".to_owned()),
        PlannedAction::UnpublishVolume { driver: by, target, .. } => {
            (Volume, target, format!("NodeUnpublishVolume by {}", driver(by)))
        }
        PlannedAction::UnstageVolume { driver: by, path, .. } => return Some(staged_volume(path, &driver(by))),
        PlannedAction::LeaveVolume { path, why } => (Volume, path, format!("leave it: {why}")),
        PlannedAction::RemoveDirectory { path } => (Directory, path, "remove it".to_owned()),
        PlannedAction::RemoveCgroup { paths, .. } => (Cgroup, paths.first()?, "remove it".to_owned()),
        // What follows from the others, or is no leftover.
        PlannedAction::RunHook { .. }
        | PlannedAction::StopContainer { .. }
        | PlannedAction::StopSandbox { .. }
        | PlannedAction::KeepClaim { .. }
        | PlannedAction::ReleaseUserIds { .. }
        | PlannedAction::ReportStatus
        | PlannedAction::DeleteObject { .. }
        | PlannedAction::NotKnown { .. } => return None,
    };
    Some(Leftover::new(kind, object, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::step::Step;

    fn plan(actions: Vec<PlannedAction>) -> Plan {
        Plan::sample(Step::Cleanup, actions)
    }

    #[test]
    fn terminal_pod_that_stays_may_have_exited_containers_and_its_directory() {
        let path = |path: &str| path.to_owned();
        let actions = vec![
            PlannedAction::StopSandbox { id: path("s") },
            PlannedAction::DeleteObject {
                uid: path("u1"),
                kept_by: Vec::new(),
            },
            PlannedAction::Unmount {
                path: path("/pods/u1/volumes/a"),
                fs_type: path("tmpfs"),
            },
            PlannedAction::RemoveDirectory {
                path: path("/pods/u1/volumes/a"),
            },
            PlannedAction::RemoveCgroup {
                cgroup: path("kubepods/podu1"),
                paths: vec![path("/sys/fs/cgroup/kubepods/podu1")],
            },
            PlannedAction::RemoveContainer {
                container: path("main"),
                id: path("c"),
            },
            PlannedAction::RemoveSandbox { id: path("s") },
            PlannedAction::RemoveDirectory { path: path("/pods/u1") },
        ];
        let kinds = |is_deleted, running: &'static str| {
            let mounts = Ok(vec![(path("/pods/u1/volumes/a"), path("tmpfs"))]);
            let left = left(&plan(actions.clone()), &mounts, Ok(Vec::new()), is_deleted, |id| {
                id == running
            });
            left.leftovers.into_iter().map(|it| it.kind).collect::<Vec<_>>()
        };
        use LeftoverKind::{Cgroup, Container, Directory, Mount, Sandbox};
        assert_eq!(kinds(true, ""), [Mount, Cgroup, Container, Sandbox, Directory]);
        assert_eq!(kinds(false, ""), [Mount, Cgroup]);
        assert_eq!(kinds(false, "c"), [Mount, Cgroup, Container]);
    }
}

//! The order in which containers are stopped. Pure.
//!
//! Main and init containers first, then sidecars one by one in reverse order of the spec (KEP-753). Ephemeral containers stop at
//! once, and nothing waits for them.

use crate::model::pod::{PodView, Role};

/// Position of a container in the stop order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPosition {
    /// Kind of the container. One without a spec counts as a regular one.
    pub role: Role,
    /// Index in the spec; the largest without a spec.
    pub index: usize,
}

// === impl StopPosition ===

impl StopPosition {
    /// The position of the container with this name.
    pub fn of(view: &PodView, name: &str) -> Self {
        let index = view.containers.iter().position(|spec| *spec.name == *name);
        let role = index.and_then(|index| view.containers.get(index)).map(|spec| spec.role);
        Self {
            role: role.unwrap_or(Role::Regular),
            index: index.unwrap_or(usize::MAX),
        }
    }

    /// Whether this container is stopped after the exit of `other`, unless the grace period expires before.
    pub fn waits_for(self, other: Self) -> bool {
        self.role == Role::Sidecar
            && match other.role {
                Role::Regular | Role::Init => true,
                Role::Sidecar => other.index > self.index,
                Role::Ephemeral => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sidecars_wait_for_others() {
        let at = |role, index| StopPosition { role, index };
        let (first, second) = (at(Role::Sidecar, 0), at(Role::Sidecar, 1));
        let (main, ephemeral) = (at(Role::Regular, 2), at(Role::Ephemeral, 3));
        let all = [first, second, main, ephemeral];
        let waits = all.map(|one| all.map(|other| one.waits_for(other)));
        assert_eq!(
            waits,
            [
                [false, true, true, false],
                [false, false, true, false],
                [false; 4],
                [false; 4]
            ]
        );
    }
}

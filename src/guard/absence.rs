//! What proves that a pod's object is gone: never silence, half a list, another store, or another cluster.

use super::Guard;
use crate::{
    api::{ApiClient, ApiError},
    journal::WatchMemory,
    pod::PodRef,
};

impl Guard {
    /// Whether a complete, consistent list of the pods of this name on this node lacks this UID. The Node is looked at
    /// before and after, so that the answer came from the cluster to which this agent belongs.
    pub async fn is_gone(&self, api: &ApiClient, pod: &PodRef) -> Result<bool, ApiError> {
        self.verify(api).await?;
        let seen_before = self.highest();
        let list = api.named(pod).await?;
        if list.shows_it {
            return Ok(false);
        }
        self.verify(api).await?;
        match self.listed(list.version, seen_before, None) {
            None => Ok(true),
            Some(cause) => Err(ApiError::Held {
                verb: "LIST",
                path: "/api/v1/pods".to_owned(),
                cause,
            }),
        }
    }
}

/// Counts of a complete list: how many pods it shows, and how many lived here just before.
#[derive(Debug, Clone, Copy)]
pub struct Census {
    /// In the list.
    pub listed: usize,
    /// Known, with no reason to vanish.
    pub living: usize,
}

/// What is remembered after a complete list of this version, which was asked for when `seen_before` was the highest seen:
/// events and other lists may have overtaken its answer. A hold stays until the operator releases it: what was restored
/// grows on, and soon looks like any other list.
pub(super) fn after_list(memory: WatchMemory, version: u64, seen_before: u64, census: Option<Census>) -> WatchMemory {
    let WatchMemory { highest, held } = memory;
    let held = held.or_else(|| match census {
        _ if version < seen_before => Some(format!(
            "a list is of resourceVersion {version}, but {seen_before} was seen before: was the cluster's store restored?"
        )),
        Some(Census { listed: 0, living }) if living > 0 => Some(format!(
            "a list was empty, but {living} pods lived here a moment before, and no deletion was seen: was the cluster's store emptied?"
        )),
        _ => None,
    });
    WatchMemory {
        highest: highest.max(version),
        held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(highest: u64) -> WatchMemory {
        WatchMemory { highest, held: None }
    }

    const FULL: Option<Census> = Some(Census { listed: 3, living: 3 });

    #[test]
    fn an_older_list_holds_and_newer_ones_do_not_release_it() {
        let after = after_list(fresh(200), 7, 200, FULL);
        assert!(after.held.as_ref().unwrap().contains("resourceVersion 7"));
        assert_eq!(after.highest, 200);
        let later = after_list(after.clone(), 5_000, 200, FULL);
        assert_eq!(later.held, after.held);
        assert_eq!(later.highest, 5_000);
    }

    #[test]
    fn a_list_that_is_suddenly_empty_holds() {
        let empty = |living| {
            after_list(fresh(5), 6, 5, Some(Census { listed: 0, living }))
                .held
                .is_some()
        };
        assert_eq!([empty(0), empty(1), empty(2)], [false, true, true]);
    }

    #[test]
    fn a_list_of_the_same_or_a_newer_version_holds_nothing() {
        assert_eq!(after_list(fresh(5), 5, 5, FULL), fresh(5));
        assert_eq!(after_list(fresh(5), 6, 5, None), fresh(6));
    }

    #[test]
    fn a_list_that_events_have_overtaken_holds_nothing() {
        assert_eq!(after_list(fresh(9), 6, 5, FULL), fresh(9));
    }
}

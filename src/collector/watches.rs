//! Logs kinds that cannot be watched. Kinds that fail for one reason at one time, such as a lost connection, share a
//! line.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    kinds::KindId,
    sight::{Sight, Trouble, Watched},
};
use crate::words::some_of;

/// Delay before a failure is logged, so that others can join it.
const GATHERED: Duration = Duration::from_secs(2);

/// The kinds that are logged as failing.
#[derive(Debug, Default)]
pub struct Watches(BTreeSet<KindId>);

/// A log line.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// Kinds fail.
    Failing {
        /// Number of kinds.
        kinds: usize,
        /// Some of them.
        resources: String,
        /// The error of the first.
        error: String,
    },
    /// Kinds are watched again, or are no longer served.
    Again {
        /// Number of kinds.
        kinds: usize,
        /// Number of kinds that still fail.
        failing: usize,
        /// Some of them.
        resources: String,
    },
}

// === impl Watches ===

impl Watches {
    /// The lines to log now.
    pub fn look(&mut self, sight: &Sight, now: Instant) -> Vec<News> {
        let failing = |id: &KindId| sight.watched.get(id).is_some_and(|it| it.trouble.is_some());
        let again: Vec<KindId> = self.0.iter().filter(|id| !failing(id)).copied().collect();
        self.0.retain(failing);
        let mut news = self.fails(sight, now);
        if !again.is_empty() {
            let names = again.iter().filter_map(|id| sight.watched.get(id)).map(Watched::name);
            news.push(News::Again {
                kinds: again.len(),
                failing: self.0.len(),
                resources: some_of(names),
            });
        }
        news
    }

    /// New failures, grouped by their reason.
    fn fails(&mut self, sight: &Sight, now: Instant) -> Vec<News> {
        let troubles = sight
            .watched
            .iter()
            .filter_map(|(id, it)| Some((id, it, it.trouble.as_ref()?)));
        let new: Vec<_> = troubles.filter(|(id, ..)| !self.0.contains(id)).collect();
        if !new.iter().any(|(.., trouble)| now >= trouble.since + GATHERED) {
            return Vec::new();
        }
        let mut causes: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for &(id, watched, trouble) in &new {
            self.0.insert(*id);
            causes.entry(&trouble.reason).or_default().push((watched, trouble));
        }
        let told = |those: Vec<(&Watched, &Trouble)>| News::Failing {
            kinds: those.len(),
            resources: some_of(those.iter().map(|(watched, _)| watched.name())),
            error: those
                .first()
                .map(|(_, trouble)| trouble.text.clone())
                .unwrap_or_default(),
        };
        causes.into_values().map(told).collect()
    }
}

// === impl News ===

impl News {
    /// Writes the line.
    pub fn tell(self) {
        match self {
            Self::Failing {
                kinds: 1,
                resources: resource,
                error,
            } => tracing::warn!(resource, error, "Kind cannot be watched; will retry"),
            Self::Failing {
                kinds,
                resources,
                error,
            } => tracing::warn!(
                kinds,
                resources,
                error,
                "Kinds cannot be watched; will retry (error of the first)"
            ),
            Self::Again {
                kinds,
                failing,
                resources,
            } => tracing::info!(
                kinds,
                resources,
                failing,
                "Kinds are watched again, or no longer served"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::{
        Unsynced,
        graph::Graph,
        kinds::{Resource, Scope},
    };

    /// This many watched kinds.
    fn kinds(many: usize) -> (Sight, Vec<KindId>) {
        let mut graph = Graph::default();
        let mut sight = Sight::new(Unsynced::Hold);
        sight.set_unknown(std::iter::empty(), Instant::now());
        let id = |number| {
            let id = graph.kinds.id("", &format!("Kind{number}")).unwrap();
            let watched = Watched {
                group: String::new(),
                resource: Resource {
                    plural: format!("kinds{number}"),
                    version: "v1".to_owned(),
                    scope: Scope::Namespaced,
                },
                begun: Instant::now(),
                synced: true,
                progress: 1,
                told: None,
                trouble: None,
            };
            sight.watched.insert(id, watched);
            id
        };
        let ids = (0..many).map(id).collect();
        (sight, ids)
    }

    fn fails(sight: &mut Sight, id: KindId, reason: &str, since: Instant) {
        sight.watched.get_mut(&id).unwrap().trouble = Some(Trouble {
            text: format!("{reason} as told"),
            reason: reason.to_owned(),
            since,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_that_fail_together_are_told_in_one_line_and_one_that_fails_alone_by_its_name() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let (mut sight, ids) = kinds(57);
        let mut watches = Watches::default();
        for (number, &id) in ids.iter().enumerate().skip(1) {
            fails(&mut sight, id, "unreachable", at(number as u64 * 20));
        }
        assert_eq!(watches.look(&sight, at(1500)), []);
        fails(&mut sight, ids[0], "403", at(1600));
        let failing = |kinds, resources: &str, error: &str| News::Failing {
            kinds,
            resources: resources.to_owned(),
            error: error.to_owned(),
        };
        let expected = [
            failing(1, "kinds0", "403 as told"),
            failing(56, "kinds1, kinds2, kinds3 and 53 more", "unreachable as told"),
        ];
        assert_eq!(watches.look(&sight, at(2500)), expected);
        assert_eq!(watches.look(&sight, at(9000)), []);
        let unsynced = sight.unsynced_because(at(60_000)).unwrap();
        assert!(
            unsynced.contains("57 kinds") && unsynced.contains("and 54 more"),
            "{unsynced}"
        );
        for id in &ids[1..] {
            sight.watched.get_mut(id).unwrap().trouble = None;
        }
        let again = News::Again {
            kinds: 56,
            failing: 1,
            resources: "kinds1, kinds2, kinds3 and 53 more".to_owned(),
        };
        assert_eq!(watches.look(&sight, at(10_000)), [again]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_is_over_at_once_is_nothing_to_tell() {
        let now = Instant::now();
        let (mut sight, ids) = kinds(1);
        let mut watches = Watches::default();
        fails(&mut sight, ids[0], "unreachable", now);
        assert_eq!(watches.look(&sight, now + Duration::from_secs(1)), []);
        sight.watched.get_mut(&ids[0]).unwrap().trouble = None;
        assert_eq!(watches.look(&sight, now + Duration::from_secs(3)), []);
    }
}

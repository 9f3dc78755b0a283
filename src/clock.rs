//! Points in time that survive a restart of the agent. They are measured from boot: changes of the wall clock do not matter.

use std::{sync::Arc, time::Duration};

use backon::ExponentialBuilder;
use jiff::Timestamp;
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

/// ID of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A point in time within a boot of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The kernel's ID of the boot.
    pub boot_id: String,
    /// `CLOCK_BOOTTIME`, which includes suspend.
    pub since_boot: Duration,
    /// For display only.
    pub wall: Timestamp,
}

/// The wall clock. It is for display: no decision depends on it.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

/// Clock of the current boot.
#[derive(Clone)]
pub struct BootClock {
    /// The kernel's ID of the current boot.
    pub boot_id: String,
    /// The wall clock.
    pub wall: WallClock,
    since_boot: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl BootClock {
    /// A clock of the current boot.
    ///
    /// # Errors
    /// When the boot ID cannot be read.
    pub fn new() -> std::io::Result<Self> {
        let boot_id = std::fs::read_to_string(BOOT_ID)?;
        Ok(Self::of(boot_id.trim(), boottime))
    }

    /// A clock with this boot ID and source of the time since boot.
    pub fn of(boot_id: &str, since_boot: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            boot_id: boot_id.to_owned(),
            wall: WallClock::default(),
            since_boot: Arc::new(since_boot),
        }
    }

    /// The present point in time.
    pub fn now(&self) -> Mark {
        Mark {
            boot_id: self.boot_id.clone(),
            since_boot: (self.since_boot)(),
            wall: self.wall.now(),
        }
    }
}

// === impl WallClock ===

impl WallClock {
    /// A clock that returns the result of `now`.
    pub fn of(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::of(Timestamp::now)
    }
}

impl std::fmt::Debug for WallClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WallClock").field(&self.now()).finish()
    }
}

/// Unlimited exponential backoff with jitter: each pause is between the half and the whole of its value, and so never longer than
/// `longest`.
pub fn pauses(first: Duration, longest: Duration) -> ExponentialBuilder {
    // The jitter adds up to the whole delay.
    ExponentialBuilder::new()
        .with_min_delay(first / 2)
        .with_max_delay(longest / 2)
        .with_jitter()
        .without_max_times()
}

/// The time from `from` until `to`; zero if `to` is earlier.
pub fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The duration in whole milliseconds, for logs.
pub fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn boottime() -> Duration {
    let time = ClockId::CLOCK_BOOTTIME.now();
    time.expect("every kernel that runs this has it").into()
}

impl Mark {
    /// Time from this mark to `now`; `None` after a reboot.
    pub fn elapsed(&self, now: &Mark) -> Option<Duration> {
        (self.boot_id == now.boot_id).then(|| now.since_boot.saturating_sub(self.since_boot))
    }
}

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder as _;

    use super::*;

    impl Mark {
        /// In this boot, so many seconds after it began, at this second of the wall clock.
        pub fn at(boot_id: &str, seconds: u64, wall: i64) -> Self {
            Self {
                boot_id: boot_id.to_owned(),
                since_boot: Duration::from_secs(seconds),
                wall: Timestamp::from_second(wall).expect("a second that a test has chosen"),
            }
        }
    }

    #[test]
    fn elapsed_time_ignores_the_wall_clock() {
        let begun = Mark::at("a", 100, 5_000_000);
        assert_eq!(begun.elapsed(&Mark::at("a", 107, 1_000)), Some(Duration::from_secs(7)));
    }

    #[test]
    fn elapsed_time_is_unknown_after_a_reboot() {
        assert_eq!(Mark::at("a", 100, 0).elapsed(&Mark::at("b", 5, 60)), None);
    }

    #[test]
    fn no_pause_exceeds_the_longest_and_few_are_equal() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        let pauses: Vec<_> = pauses(first, longest).build().take(1000).collect();
        assert!(
            pauses.iter().all(|pause| *pause <= longest),
            "{:?}",
            pauses.iter().max()
        );
        assert!(pauses[0] >= first / 2 && pauses[0] <= first, "{:?}", pauses[0]);
        let late = &pauses[10..];
        assert!(
            late.iter().all(|pause| *pause >= longest / 2),
            "{:?}",
            late.iter().min()
        );
        let different: std::collections::BTreeSet<_> = late.iter().collect();
        assert!(different.len() > late.len() / 2, "{}", different.len());
    }

    #[test]
    fn clock_is_monotonic() {
        let clock = BootClock::new().unwrap();
        let first = clock.now();
        assert!(first.elapsed(&clock.now()).is_some());
    }
}

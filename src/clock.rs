//! Moments that outlive this process: measured from boot, so that a jump of the wall clock changes nothing.

use std::{path::Path, sync::Arc, time::Duration};

use backon::ExponentialBuilder;
use jiff::Timestamp;
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

/// Where the kernel names the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A moment of this boot of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which boot.
    pub boot_id: String,
    /// CLOCK_BOOTTIME, which goes on while the machine sleeps.
    pub since_boot: Duration,
    /// For people only.
    pub wall: Timestamp,
}

/// Tells the time of day, which is for people and never decides anything.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

/// Tells moments of this boot.
#[derive(Clone)]
pub struct BootClock {
    boot_id: String,
    wall: WallClock,
    since_boot: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl BootClock {
    /// A clock of the current boot.
    pub fn new() -> std::io::Result<Self> {
        Self::from_file(Path::new(BOOT_ID))
    }

    fn from_file(path: &Path) -> std::io::Result<Self> {
        let boot_id = std::fs::read_to_string(path)?;
        Ok(Self::of(boot_id.trim(), boottime))
    }

    /// A clock of some boot, which tells the time since then by `since_boot`.
    pub fn of(boot_id: &str, since_boot: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            boot_id: boot_id.to_owned(),
            wall: WallClock::default(),
            since_boot: Arc::new(since_boot),
        }
    }

    /// The boot whose moments it tells.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The same, with this time of day.
    #[must_use]
    pub fn with_wall(self, wall: WallClock) -> Self {
        Self { wall, ..self }
    }

    /// The clock that tells the time of day.
    pub fn wall(&self) -> &WallClock {
        &self.wall
    }

    /// This moment.
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
    /// One that tells what `now` says.
    pub fn of(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it shows.
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

/// Pauses between tries without end: doubled up to the longest, each with jitter so that many do not move in step.
pub fn pauses(first: Duration, longest: Duration) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(longest)
        .with_jitter()
        .without_max_times()
}

/// As people read it: nobody is helped by nanoseconds.
pub fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn boottime() -> Duration {
    let time = ClockId::CLOCK_BOOTTIME
        .now()
        .expect("every kernel that runs this has it");
    Duration::from(time)
}

impl Mark {
    /// Time from this moment to `now`; `None` if the machine was rebooted in between.
    pub fn elapsed(&self, now: &Mark) -> Option<Duration> {
        (self.boot_id == now.boot_id).then(|| now.since_boot.saturating_sub(self.since_boot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(boot_id: &str, seconds: u64, wall: i64) -> Mark {
        Mark {
            boot_id: boot_id.to_owned(),
            since_boot: Duration::from_secs(seconds),
            wall: Timestamp::from_second(wall).unwrap(),
        }
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_nothing() {
        let begun = mark("a", 100, 5_000_000);
        assert_eq!(begun.elapsed(&mark("a", 107, 1_000)), Some(Duration::from_secs(7)));
    }

    #[test]
    fn nothing_is_known_across_a_reboot() {
        assert_eq!(mark("a", 100, 0).elapsed(&mark("b", 5, 60)), None);
    }

    #[test]
    fn the_clock_goes_forward() {
        let clock = BootClock::new().unwrap();
        let first = clock.now();
        assert!(first.elapsed(&clock.now()).is_some());
    }
}

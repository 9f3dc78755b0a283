//! Random numbers from a seed, so that a run can be repeated.

use std::time::Duration;

/// See the module's documentation (splitmix64).
pub struct Dice(u64);

impl Dice {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `most`.
    pub fn up_to(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap_or_default()
    }

    /// True once in `many` times on average.
    pub fn one_in(&mut self, many: usize) -> bool {
        self.up_to(many) == 0
    }

    /// Less than `most` milliseconds.
    pub fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.next() % most)
    }
}

//! Progress of long work.

use std::time::Duration;

use tokio::time::Instant;

/// Shorter work prints nothing.
const EVERY: Duration = Duration::from_secs(15);

/// Work on a known number of items.
#[derive(Debug)]
pub struct Progress {
    what: String,
    total: u32,
    begin: Instant,
    direct_line: Instant,
}

// === impl Progress ===

impl Progress {
    /// Starts now.
    pub fn new(what: impl Into<String>, total: u32) -> Self {
        let now = Instant::now();
        Self {
            what: what.into(),
            total,
            begin: now,
            direct_line: now,
        }
    }

    /// Records that `done` items are done; prints that from time to time.
    pub fn at(&mut self, done: u32) {
        // Nearly finished work is not printed.
        if self.direct_line.elapsed() < EVERY || u64::from(done) * 10 > u64::from(self.total) * 9 {
            return;
        }
        self.direct_line = Instant::now();
        println!("{}", line(&self.what, done, self.total, self.begin.elapsed()));
    }
}

/// Formats a number with separators.
pub fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn line(what: &str, done: u32, total: u32, elapsed: Duration) -> String {
    let so_far = format!("  {what}: {} of {}", thousands(done), thousands(total));
    if done == 0 {
        return so_far;
    }
    let left = elapsed.as_secs_f64() / f64::from(done) * f64::from(total - done);
    format!("{so_far}, about {left:.0} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_estimated() {
        assert_eq!(
            line("creating", 25_000, 100_000, Duration::from_secs(10)),
            "  creating: 25,000 of 100,000, about 30 s left"
        );
        assert_eq!(
            line("creating", 0, 1000, Duration::from_secs(10)),
            "  creating: 0 of 1,000"
        );
    }

    #[test]
    fn thousands_are_set_apart() {
        let all = [0, 999, 1000, 123_456, 1_000_000].map(thousands);
        assert_eq!(all, ["0", "999", "1,000", "123,456", "1,000,000"]);
    }
}

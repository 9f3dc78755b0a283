//! Waits until a list shows no dependents: the same measure for all contenders.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::page::Page;
use super::progress::{Progress, thousands};
use crate::http2::Http2;

/// A list of one object costs next to nothing at this rate.
const SELDOM: Duration = Duration::from_millis(100);
/// Interval near the end, for the precision of short runs.
const OFTEN: Duration = Duration::from_millis(20);
/// Fails if no object is deleted for so long.
const STALLED: Duration = Duration::from_secs(90);

/// Waits until at most `rest` of `total` objects are left. Returns when, since `begin`, a list first showed that.
pub async fn wait_until_left(
    client: &Http2,
    collection: &str,
    total: u32,
    rest: u32,
    begin: Instant,
) -> Result<Duration> {
    let path = format!("{collection}?limit=1");
    let mut progress = Progress::new("deleting", total);
    let mut last = (u32::MAX, Instant::now());
    loop {
        let asked = begin.elapsed();
        let left = Page::get(client, &path).await?.left();
        if left <= rest {
            // The list shows a state between its request and its answer.
            return Ok((asked + begin.elapsed()) / 2);
        }
        progress.at(total.saturating_sub(left));
        if left < last.0 {
            last = (left, Instant::now());
        } else if last.1.elapsed() > STALLED {
            bail!("{} are left, and none went in {STALLED:?}", thousands(left));
        }
        sleep(if is_near_end(left - rest, total) { OFTEN } else { SELDOM }).await;
    }
}

fn is_near_end(left: u32, total: u32) -> bool {
    left <= (total / 20).max(50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_faster_when_a_twentieth_is_left() {
        assert!(is_near_end(250, 5000) && !is_near_end(251, 5000));
        assert!(is_near_end(50, 100));
    }
}

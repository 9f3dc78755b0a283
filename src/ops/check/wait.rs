//! `check --wait`: repeats the checks until the agent can work.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::report::Report;

/// Time between the end of a check and the start of the next.
const INTERVAL: Duration = Duration::from_secs(2);

/// Repeats `check` until it succeeds, cannot succeed, or `limit` has passed; returns its last report. A check that has begun
/// is finished. `progress` gets a line whenever other items fail than before.
pub async fn until_ready(
    mut check: impl AsyncFnMut() -> Report,
    limit: Duration,
    mut progress: impl FnMut(&str),
) -> Report {
    let started = Instant::now();
    let mut reported = Vec::new();
    loop {
        let report = check().await;
        let elapsed = started.elapsed();
        if report.is_final || elapsed >= limit {
            return report;
        }
        let failed = report.failed();
        if failed != reported {
            let elapsed = Duration::from_secs(elapsed.as_secs());
            let (elapsed, limit) = (humantime::format_duration(elapsed), humantime::format_duration(limit));
            let items = failed.join(", ");
            progress(&format!("not ready after {elapsed}: {items}; waiting up to {limit}"));
            reported = failed;
        }
        sleep_until((Instant::now() + INTERVAL).min(started + limit)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::{Item, Row, Verdict};

    fn report(verdict: Verdict) -> Report {
        Report::new(vec![Row::new(Item::RUNTIME, verdict, "", "")])
    }

    /// Runs checks with these results; the last one repeats. Returns exit code, number of checks and progress.
    async fn wait(results: &[Verdict], limit: Duration) -> (u8, usize, Vec<String>) {
        let (mut checks, mut lines) = (0, Vec::new());
        let check = async || {
            checks += 1;
            report(results[(checks - 1).min(results.len() - 1)])
        };
        let last = until_ready(check, limit, |line| lines.push(line.to_owned())).await;
        (last.exit_code, checks, lines)
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_as_soon_as_the_agent_can_work() {
        let results = [Verdict::Unreachable, Verdict::Unreachable, Verdict::Ok];
        let (code, checks, lines) = wait(&results, Duration::from_secs(60)).await;
        assert_eq!((code, checks), (0, 3));
        assert_eq!(lines, ["not ready after 0s: runtime; waiting up to 1m"]);
    }

    #[tokio::test(start_paused = true)]
    async fn last_report_is_returned_when_the_time_is_over() {
        let started = Instant::now();
        let (code, checks, _) = wait(&[Verdict::Unreachable], Duration::from_secs(5)).await;
        assert_eq!((code, checks), (69, 4));
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_command_line_is_reported_at_once_but_a_missing_setting_is_waited_for() {
        let limit = Duration::from_secs(60);
        assert_eq!(wait(&[Verdict::Usage], limit).await.1, 1);
        assert_eq!(wait(&[Verdict::NotGiven, Verdict::Ok], limit).await.1, 2);
    }
}

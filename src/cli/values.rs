//! Values of flags and arguments.

use std::time::Duration;

use clap::ValueEnum;

use crate::model::termination::is_reason;

/// Maximum duration of a pause that ends by itself.
pub const MAX_PAUSE: Duration = Duration::from_secs(30 * 24 * 3600);

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeFlag {
    /// Only compare: the agent touches nothing, whatever the kubelet does. It plans each termination, and compares the kubelet's
    /// result with its own plan: pod-teardown report.
    Observe,
    /// Standby while this node's kubelet works; active while it is down.
    Auto,
    /// This node has no kubelet. The agent touches nothing while a kubelet process exists.
    Always,
    /// No pods: the agent only collects garbage, and needs no runtime.
    Never,
}

/// Parses a duration with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    match humantime::parse_duration(text) {
        // The library accepts 0 without a unit.
        Ok(duration) if text.contains(char::is_alphabetic) => Ok(duration),
        _ => Err("it must be a number with a unit, such as 60s or 2m"),
    }
}

/// Parses a grace period: seconds, as in kubectl, or a duration with a unit, which is rounded up to seconds.
pub(super) fn grace_period(text: &str) -> Result<i64, &'static str> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| "it is too long");
    }
    let duration = humantime::parse_duration(text);
    let duration = duration.map_err(|_| "it must be seconds, such as 5, or a number with a unit, such as 2m")?;
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(seconds).map_err(|_| "it is too long")
}

/// Parses the duration of a pause.
pub(super) fn pause_seconds(text: &str) -> Result<u64, &'static str> {
    match since(text)? {
        duration if duration > MAX_PAUSE => Err("it is longer than 30 days"),
        duration => Ok(duration.as_secs()),
    }
}

/// Parses the time of a report.
pub(super) fn since(text: &str) -> Result<Duration, &'static str> {
    match duration(text)? {
        duration if duration.as_secs() == 0 => Err("it is shorter than one second"),
        duration => Ok(duration),
    }
}

/// Parses the reason of an eviction.
pub(super) fn reason(text: &str) -> Result<String, &'static str> {
    if is_reason(text) {
        Ok(text.to_owned())
    } else {
        Err("must be one word of letters and digits, such as Evicted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_period_is_seconds_or_has_a_unit() {
        for (text, seconds) in [("0", 0), ("5", 5), ("5s", 5), ("1500ms", 2), ("2m", 120)] {
            assert_eq!(grace_period(text), Ok(seconds), "{text}");
        }
        for text in ["", "-1", "5x", "soon", "99999999999999999999"] {
            assert!(grace_period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn duration_has_a_unit_and_an_error_names_examples() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["", "5", "0", "soon", "-5s", "5 parsecs"] {
            assert!(duration(text).is_err_and(|why| why.contains("60s")), "{text}");
        }
    }

    #[test]
    fn pause_has_a_unit_and_bounds() {
        assert_eq!(pause_seconds("2h"), Ok(7200));
        for text in ["", "2", "0s", "10ms", "31d", "later"] {
            assert!(pause_seconds(text).is_err(), "{text}");
        }
    }
}

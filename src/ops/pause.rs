//! Formats the results of `pause` and `resume`.

use super::admin::pause::Pause;
use crate::words::some_of;

/// Formats the result of `pause`.
pub fn paused(pause: &Pause) -> String {
    let paused = pause
        .paused
        .as_ref()
        .map_or_else(|| "the agent is not paused".to_owned(), |paused| paused.why());
    let progress = if pause.in_progress.is_empty() {
        "no pod is in progress".to_owned()
    } else {
        format!(
            "in progress, up to a safe point: {}",
            some_of(pause.in_progress.iter().cloned())
        )
    };
    format!(
        "No work starts on this node: {paused}; {progress}{}.",
        not_durable(pause)
    )
}

/// Formats the result of `resume`.
pub fn resumed(pause: &Pause) -> String {
    let text = match &pause.paused {
        Some(paused) => format!("Waiting work continues; the agent was paused {}", paused.beginning()),
        None => "The agent was not paused".to_owned(),
    };
    format!("{text}{}.", not_durable(pause))
}

fn not_durable(pause: &Pause) -> String {
    let cause = pause.not_durable.as_ref();
    cause.map_or_else(String::new, |cause| {
        format!("; a restart of the agent would lose this change: {cause}")
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::journal::paused::Paused;

    #[test]
    fn result_of_resume_names_no_end_of_the_pause() {
        let paused = Paused {
            since: Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: None,
            until: Timestamp::from_second(7200).ok(),
        };
        let pause = Pause {
            paused: Some(paused),
            ..Pause::default()
        };
        assert_eq!(
            resumed(&pause),
            "Waiting work continues; the agent was paused since 1970-01-01T00:00:00Z by root."
        );
    }
}

//! Formats the results of `pause` and `resume`.

use super::admin::pause::Pause;
use crate::{journal::paused::Paused, words::some_of};

/// Formats the result of `pause`.
pub fn paused(pause: &Pause) -> String {
    let why = pause.paused.as_ref().map_or_else(|| "paused".to_owned(), Paused::why);
    let progress = if pause.in_progress.is_empty() {
        "no work is in progress".to_owned()
    } else {
        format!(
            "not yet at a safe point: {}",
            some_of(pause.in_progress.iter().cloned())
        )
    };
    format!(
        "The agent is {why}: no termination starts or continues; {progress}{}.",
        durable(pause)
    )
}

/// Formats the result of `resume`.
pub fn resumed(pause: &Pause) -> String {
    let text = match &pause.paused {
        Some(paused) => format!("Resumed: what waits continues; it was {}", paused.why()),
        None => "It was not paused".to_owned(),
    };
    format!("{text}{}.", durable(pause))
}

fn durable(pause: &Pause) -> String {
    let cause = pause.not_durable.as_ref();
    cause.map_or_else(String::new, |cause| {
        format!("; a restart of the agent would lose this: {cause}")
    })
}

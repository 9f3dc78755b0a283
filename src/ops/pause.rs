//! Formats the results of `pause` and `resume`.

use super::admin::pause::Pause;
use crate::words::some_of;

/// Formats the result of `pause`.
pub fn paused(pause: &Pause) -> String {
    let by = pause
        .paused
        .as_ref()
        .map_or_else(String::new, |paused| format!(", {}", paused.why()));
    let progress = if pause.under_way.is_empty() {
        "nothing is under way".to_owned()
    } else {
        format!(
            "on the way to a safe point: {}",
            some_of(pause.under_way.iter().cloned())
        )
    };
    format!(
        "No pod's end is begun or taken further{by}; {progress}{}.",
        durable(pause)
    )
}

/// Formats the result of `resume`.
pub fn resumed(pause: &Pause) -> String {
    let text = match &pause.paused {
        Some(paused) => format!("What waits is taken up again; it was {}", paused.why()),
        None => "It was not paused".to_owned(),
    };
    format!("{text}{}.", durable(pause))
}

fn durable(pause: &Pause) -> String {
    let cause = pause.not_durable.as_ref();
    cause.map_or_else(String::new, |cause| {
        format!("; a restart of the agent would not know it yet: {cause}")
    })
}

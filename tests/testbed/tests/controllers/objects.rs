//! Objects for controllers.

use serde_json::{Value, json};

/// It is never scheduled, so the image is never pulled.
fn template(name: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "main", "image": "none"}]},
    })
}

pub fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "Always"),
        },
    })
}

pub fn job(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"template": template(name, "Never")}})
}

/// Suspended, so that it does nothing before [`last_scheduled_long_ago`] is written into its status.
pub fn cron_job(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "schedule": "0 0 1 1 *",
            "timeZone": "Etc/UTC",
            "suspend": true,
            "jobTemplate": {"spec": {"template": template(name, "Never")}},
        },
    })
}

pub fn go_on() -> Value {
    json!({"spec": {"suspend": false}})
}

/// So that it is due at once, and then not for as long as a test takes: no test waits a full minute.
pub fn last_scheduled_long_ago() -> Value {
    json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}})
}

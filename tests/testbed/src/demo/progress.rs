//! Progress of the pods, from the API server and the agent.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::screen::{Mood, Row, Screen};
use crate::rest::{EventType, Watch};
use crate::stage::AgentProcess;

/// Interval of status requests.
const TICK: Duration = Duration::from_millis(120);
/// The slowest pod takes less than five seconds.
const LIMIT: Duration = Duration::from_secs(25);

/// Progress of one pod.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// The object as last seen.
    pub last: Value,
    /// When its object was deleted.
    pub deleted: Option<Duration>,
    /// When the agent had completed its teardown.
    pub finished: Option<Duration>,
    trace: Option<Value>,
}

/// Follows the pods until the agent is done with all of them.
pub struct Progress<'a> {
    agent: &'a AgentProcess,
    watch: Watch,
    begin: Instant,
    fates: BTreeMap<&'static str, Fate>,
    order: Vec<&'static str>,
}

// === impl Progress ===

impl<'a> Progress<'a> {
    /// The watch must start before the first deletion.
    pub fn new(agent: &'a AgentProcess, watch: Watch, order: Vec<&'static str>) -> Self {
        Self {
            agent,
            watch,
            begin: Instant::now(),
            fates: order.iter().map(|name| (*name, Fate::default())).collect(),
            order,
        }
    }

    /// Draws the progress until all pods are torn down, and returns it.
    pub async fn follow(mut self, screen: &mut Screen) -> Result<BTreeMap<&'static str, Fate>> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.fates.values().all(|fate| fate.finished.is_some()) {
            tokio::select! {
                event = self.watch.next() => match event? {
                    Some(event) => self.see(event.kind, &event.object),
                    None => bail!("the API server has ended the watch"),
                },
                _ = ticks.tick() => {
                    let status = self.agent.status().await?;
                    self.hear(&status);
                    screen.draw(self.begin.elapsed(), self.rows());
                }
            }
            if self.begin.elapsed() > LIMIT {
                bail!(
                    "not all pods are gone after {LIMIT:?}; the agent's log ends:\n{}",
                    self.agent.log_tail()
                );
            }
        }
        screen.draw(self.begin.elapsed(), self.rows());
        screen.settle();
        Ok(self.fates)
    }

    fn see(&mut self, kind: EventType, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let Some(fate) = self.fates.get_mut(name) else { return };
        if kind == EventType::Deleted {
            fate.deleted = Some(self.begin.elapsed());
        }
        fate.last = object.clone();
    }

    fn hear(&mut self, status: &Value) {
        let now = self.begin.elapsed();
        let none = Vec::new();
        let traces = status["pods"]["terminating"].as_array().unwrap_or(&none);
        let all_done = status["counters"]["finished"] == self.fates.len();
        for (name, fate) in &mut self.fates {
            let trace = traces.iter().find(|trace| trace["name"] == *name);
            // A teardown shorter than a tick is never seen in progress.
            if fate.finished.is_none() && trace.is_none() && (fate.trace.is_some() || all_done) {
                fate.finished = Some(now);
            }
            if let Some(trace) = trace {
                fate.trace = Some(trace.clone());
            }
        }
    }

    fn rows(&self) -> Vec<Row> {
        self.order.iter().map(|name| self.fates[name].row(name)).collect()
    }
}

// === impl Fate ===

impl Fate {
    fn row(&self, name: &str) -> Row {
        let row = |mood, gist: String, detail: String| Row {
            mood,
            name: name.to_owned(),
            gist,
            detail,
        };
        if let Some(finished) = self.finished {
            let [deleted, finished] = [self.deleted.unwrap_or(finished), finished].map(|it| it.as_secs_f64());
            let gist = format!("object deleted after {deleted:.2} s, node clean after {finished:.2} s");
            return row(Mood::Good, gist, String::new());
        }
        let Some(trace) = &self.trace else {
            return row(Mood::Waiting, "deleted".into(), String::new());
        };
        let doing = doing(trace);
        let gist = match self.deleted {
            Some(_) => format!("object deleted; {doing}"),
            None => doing,
        };
        let left = trace["graceLeftMs"].as_u64().unwrap_or(0);
        let detail = match left {
            0 => String::new(),
            _ if self.deleted.is_some() => String::new(),
            left => format!(", {}.{} s of the grace period left", left / 1000, left % 1000 / 100),
        };
        row(Mood::Busy, gist, detail)
    }

    /// The last status of each container, such as `main 0`.
    pub fn exits(&self) -> Vec<String> {
        let none = Vec::new();
        let statuses = self.last["status"]["containerStatuses"].as_array().unwrap_or(&none);
        let exits = statuses.iter().filter_map(|status| {
            let ended = &status["state"]["terminated"];
            let code = ended["exitCode"].as_i64()?;
            let words = ended["message"]
                .as_str()
                .map(str::trim)
                .filter(|words| !words.is_empty());
            let words = words.map(|words| format!(" (“{words}”)")).unwrap_or_default();
            Some(format!("{} {code}{words}", status["name"].as_str().unwrap_or("?")))
        });
        exits.collect()
    }
}

/// The steps in progress, such as `term web, cache`.
fn doing(trace: &Value) -> String {
    let none = Vec::new();
    let spans = trace["spans"].as_array().unwrap_or(&none);
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for span in spans.iter().filter(|span| span["endMs"].is_null()) {
        let step = span["step"].as_str().unwrap_or_default();
        let what = span["what"].as_str().unwrap_or_default();
        match steps.iter_mut().find(|(name, _)| *name == step) {
            Some((_, whats)) => whats.push(what),
            None => steps.push((step, vec![what])),
        }
    }
    let steps: Vec<_> = steps
        .iter()
        .map(|(step, whats)| format!("{step} {}", whats.join(", ")).trim_end().to_owned())
        .collect();
    match steps.as_slice() {
        [] if trace["stage"] == "deleted" => "cleanup waits for the others".to_owned(),
        [] => "between two steps".to_owned(),
        steps => steps.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_steps_in_progress_are_shown_once() {
        let trace = json!({ "spans": [
            { "step": "hook", "what": "web", "startMs": 0, "endMs": 3 },
            { "step": "term", "what": "web", "startMs": 3 },
            { "step": "term", "what": "cache", "startMs": 0 },
            { "step": "status", "startMs": 0 },
        ] });
        assert_eq!(doing(&trace), "term web, cache; status");
    }

    #[test]
    fn exit_codes_come_with_the_last_words() {
        let fate = Fate {
            last: json!({ "status": { "containerStatuses": [
                { "name": "one", "state": { "terminated": { "exitCode": 0, "message": "bye\n" } } },
                { "name": "two", "state": { "terminated": { "exitCode": 137 } } },
                { "name": "three", "state": { "running": {} } },
            ] } }),
            ..Fate::default()
        };
        assert_eq!(fate.exits(), ["one 0 (“bye”)", "two 137"]);
    }
}

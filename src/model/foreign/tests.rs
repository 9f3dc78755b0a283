use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ObjectReference;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    api::ApiError,
    collector::report::{KindReport, WorkReport},
    counters::Counters,
    events::{Events, SendEvent},
    model::event::Reason,
    node::{
        grpc::Call,
        kubelet_process::{self, LocalKubelet},
        kubelet_root::KubeletRoot,
    },
    ops::{
        admin,
        check::{self, Item, Report, Row},
        logging,
        metrics::{self, CollectorMetrics, Scrape},
        service,
    },
};

/// Texts with characters that a terminal, a log or systemd interprets.
const OBEYED: &str = "\u{0}\u{1}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{1b}\u{1f}\u{7f}\u{80}\u{85}\u{90}\u{9b}\u{9d}\u{9f}\u{61c}\u{200e}\u{200f}\
    \u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

fn hostile() -> Vec<String> {
    let obeyed = OBEYED.chars().map(|letter| format!("a{letter}b"));
    let known = [
        "x\nMAINPID=1",
        "x\nWATCHDOG=trigger",
        "\u{1b}]0;owned\u{7}\u{1b}[2J",
        "x\n{\"level\":\"INFO\"}",
    ];
    let long = ["x", "\u{1b}", "\u{2028}", "ü\n"].map(|piece| piece.repeat(1 << 18));
    obeyed.chain(known.map(str::to_owned)).chain(long).collect()
}

fn is_obeyed(letter: char) -> bool {
    letter.is_control() || OBEYED.contains(letter)
}

/// The text at the output of each channel.
fn channels(text: &str) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::new();
    all.insert(
        "status for systemd",
        format!("STATUS={}\n", service::escaped_status(text)),
    );
    all.extend(logging::tests::log_in_all_formats(|| {
        tracing::warn!(shown = %text, quoted = text, debugged = ?text, "{text}");
        tracing::info_span!("pod", pod.name = %text).in_scope(|| tracing::warn!("Within"));
    }));
    let row = |seen: &str| Row::new(Item::RUNTIME, check::Verdict::Failed(check::FAILURE), seen, seen);
    all.insert("table of check", Report::new(vec![row(text)]).table(false));
    let answer = admin::json_answer(&json!({ text: [text] }))
        .unwrap()
        .into_body()
        .collect();
    let answer = answer.now_or_never().unwrap().unwrap().to_bytes();
    all.insert("JSON of an answer", String::from_utf8(answer.into()).unwrap());
    let kind = KindReport {
        group: text.to_owned(),
        plural: text.to_owned(),
        ..KindReport::default()
    };
    let mut collector = CollectorMetrics::default();
    collector.status.work = Some(WorkReport {
        kinds: vec![kind],
        ..WorkReport::default()
    });
    let scrape = Scrape {
        collector: Some(collector),
        ..Scrape::default()
    };
    // Other tests of this process count their requests.
    let text_of_scrape = metrics::text(&scrape).unwrap();
    let of_collector = text_of_scrape.split('\n').filter(|line| !line.contains("api_request"));
    all.insert("label of a metric", of_collector.collect::<Vec<_>>().join("\n"));
    all.insert("event", event(text));
    let (cri, driver, api) = errors(text);
    all.insert("error of the runtime", cri);
    all.insert("error of a driver", driver);
    all.insert("error of the API server", api);
    all.insert("kubelet's command line", kubelet(text));
    let shown = escape_value(json!({ text: [text] }));
    all.insert(
        "text of an answer",
        shown
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| format!("{name}{}", value[0].as_str().unwrap()))
            .collect(),
    );
    all
}

fn event(text: &str) -> String {
    let (sent, received) = std::sync::mpsc::channel();
    let bring: SendEvent = Arc::new(move |event| {
        sent.send(event.body).ok();
        Box::pin(async { Ok(()) })
    });
    let (events, sender) = Events::new(bring, "node", Arc::new(Counters::default()));
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some("default".to_owned()),
        name: Some("web-0".to_owned()),
        uid: Some("1".to_owned()),
        ..ObjectReference::default()
    };
    events.record(&about, Reason::FailedKillPod, text);
    drop(events);
    sender.now_or_never().unwrap();
    String::from_utf8(received.try_recv().unwrap().into()).unwrap()
}

fn errors(text: &str) -> (String, String, String) {
    let status = tonic::Status::internal(text);
    let of_driver = Call::to_driver("NodeUnpublishVolume", "csi.example.com", "/x");
    let answer = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": text, "reason": text });
    (
        Call::to_runtime("StopContainer", "1").refused(&status).to_string(),
        of_driver.refused(&status).to_string(),
        ApiError::refused("GET", "/x", 500, None, answer.to_string().as_bytes()).to_string(),
    )
}

/// The description of a process with this text as its arguments.
fn kubelet(text: &str) -> String {
    let proc = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(proc.path().join("77")).unwrap();
    std::fs::create_dir_all(proc.path().join("pods")).unwrap();
    std::fs::write(proc.path().join("77/comm"), "kubelet\n").unwrap();
    std::os::unix::fs::symlink("/", proc.path().join("77/root")).unwrap();
    std::os::unix::fs::symlink("/", proc.path().join("77/cwd")).unwrap();
    let root = KubeletRoot::resolve(proc.path()).unwrap();
    let command = format!("kubelet\0--root-dir={}\0{text}\0", proc.path().display());
    std::fs::write(proc.path().join("77/cmdline"), command).unwrap();
    let ours = LocalKubelet {
        root,
        runtime: "/run/cri.sock".into(),
        healthz: None,
    };
    kubelet_process::with_pid(proc.path(), 77, &ours)
        .unwrap()
        .unwrap()
        .to_string()
}

#[test]
fn no_channel_passes_control_characters() {
    let lines = |text: &str| text.split('\n').count();
    let harmless = channels("harmless");
    assert!(harmless.len() == 13, "{harmless:?}");
    for (channel, shown) in &harmless {
        assert!(shown.contains("harmless"), "{channel}: {shown}");
    }
    for text in hostile() {
        for (channel, shown) in channels(&text) {
            let obeyed = shown.chars().find(|letter| *letter != '\n' && is_obeyed(*letter));
            let start: String = text.chars().take(20).collect();
            assert_eq!(obeyed, None, "{channel} of {start:?}");
            assert_eq!(lines(&shown), lines(&harmless[channel]), "{channel} of {start:?}");
            let limit = harmless[channel].len() + (256 << 10);
            assert!(
                shown.len() < limit || channel.contains("JSON"),
                "{channel} of {start:?}: {}",
                shown.len()
            );
        }
    }
}

#[test]
fn truncated_text_keeps_head_and_tail() {
    let path = format!("/head/{}/tail", "ü".repeat(LONGEST));
    let text = ForeignText::new(&path);
    assert!(
        text.starts_with("/head/ü") && text.ends_with("ü/tail") && text.contains("ü…ü"),
        "{text}"
    );
    assert!((LONGEST - 4..=LONGEST).contains(&text.len()), "{}", text.len());
    assert_eq!(&*ForeignText::from_bytes(b"a\xff\nb"), "a\u{fffd}\\nb");
}

#[test]
fn newlines_between_lines_stay() {
    assert_eq!(escape_lines("one\n\ttwo\u{1b}[2J\n"), "one\n\ttwo\\u{1b}[2J\n");
}

proptest! {
    #[test]
    fn any_text_becomes_one_line_within_its_limit_and_escaping_is_idempotent(
        text in any::<String>(), limit in 8usize..200
    ) {
        let shown = ForeignText::within(&text, limit);
        prop_assert!(!shown.chars().any(is_obeyed), "{:?}", shown);
        prop_assert!(shown.len() <= limit, "{} > {limit}", shown.len());
        prop_assert_eq!(&ForeignText::within(&shown, limit), &shown);
    }

    #[test]
    fn escaped_json_keeps_its_value_and_has_no_control_characters(name in any::<String>(), text in any::<String>()) {
        let value = json!({ name: [text] });
        let shown = escape_json(serde_json::to_string_pretty(&value).unwrap());
        prop_assert!(!shown.chars().any(|letter| letter != '\n' && is_obeyed(letter)), "{shown:?}");
        prop_assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }
}

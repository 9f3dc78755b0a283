use super::*;
use crate::{
    handover::report::ProbeReport,
    model::{
        blocked,
        kubelet_unit::KubeletUnit,
        termination::GraceStart,
        trace::{Obstacle, Stage},
    },
    node::runtime::RuntimeReport,
    watch::WatchReport,
};

fn report() -> StatusReport {
    let since = Timestamp::UNIX_EPOCH;
    let probe = |name: &str| ProbeReport {
        probe: name.to_owned(),
        state: ProbeState::Alive,
        since: Some(since),
        seen: String::new(),
    };
    StatusReport {
        since,
        takes_pods: true,
        role: Some(RoleReport {
            role: RoleName::Standby,
            reason: Some(StandbyReasonName::KubeletAlive),
            since: Some(since),
            message: Some("the kubelet works".to_owned()),
            probes: ["process", "healthz", "lease"].map(probe).into(),
            ..RoleReport::default()
        }),
        runtime: RuntimeReport {
            version: Some("containerd 2.4.2".to_owned()),
            error: None,
        },
        watch: WatchReport {
            state: SourceState::Watching,
            pods: 12,
            ..WatchReport::default()
        },
        ..StatusReport::default()
    }
}

fn text(report: &StatusReport, is_wide: bool) -> String {
    super::text(report, is_wide, Timestamp::from_second(312).unwrap())
}

#[test]
fn unit_of_a_kubelet_that_does_not_work_stands_below_the_probes_with_a_remedy() {
    let mut report = report();
    report.role.as_mut().unwrap().kubelet_unit = Some(KubeletUnit {
        unit: "kubelet.service".to_owned(),
        load_state: "masked".to_owned(),
        active_state: "inactive".to_owned(),
        ..KubeletUnit::default()
    });
    let lines = "
Kubelet   process alive 5m12s, healthz alive 5m12s, Lease renewed 5m12s ago
          kubelet.service is masked
          run `systemctl unmask kubelet.service` and `systemctl start kubelet.service`
Runtime ";
    assert!(text(&report, false).contains(lines), "{}", text(&report, false));
}

#[test]
fn four_lines_stand_above_the_table_of_terminating_pods() {
    let mut report = report();
    let lines = "\
Role      standby (kubelet-alive) for 5m12s: the kubelet works
Kubelet   process alive 5m12s, healthz alive 5m12s, Lease renewed 5m12s ago
Runtime   containerd 2.4.2
API       watching, 12 pods
";
    assert_eq!(text(&report, false), format!("{lines}\nNo pod is terminating.\n"));
    report.pods.terminating = vec![Trace {
        stage: Stage::Terminated,
        elapsed_ms: 42_000,
        blocked: vec![Obstacle::pod(BlockedReason::Failed, "busy"); 2],
        ..Trace::sample()
    }];
    let table = "
NAMESPACE   NAME    STEP     AGE   GRACE   WAITING-FOR
default     web-0   volumes  42s   0s      blocked: busy (and 1 more)
";
    let table = table
        .replace("volumes  42s", "volumes   42s")
        .replace("STEP     AGE", "STEP      AGE");
    assert_eq!(text(&report, false), format!("{lines}{table}"));
    let wide = text(&report, true);
    assert!(
        wide.starts_with("Agent     pod-teardown  on node , pid 0, up 5m12s\nRole "),
        "{wide}"
    );
    assert!(
        wide.contains("ATTEMPTS   UID") && wide.contains("1          1234"),
        "{wide}"
    );
}

#[test]
fn pod_that_is_left_to_the_kubelet_is_not_shown_as_blocked() {
    let mut report = report();
    let why = "a kubelet runs on this node (pid 7)";
    report.pods.terminating = vec![Trace {
        blocked: vec![Obstacle::pod(BlockedReason::Guard, why)],
        ..Trace::sample()
    }];
    let row = |report: &StatusReport| text(report, false).lines().last().unwrap().to_owned();
    assert_eq!(row(&report), "default     web-0   -      0s    -       the kubelet");
    let mut pending = report.clone();
    let role = pending.role.as_mut().unwrap();
    role.reason = Some(StandbyReasonName::TakeoverPending);
    role.message = Some("the kubelet is down; takeover in 8 s if it stays down".to_owned());
    pending.blocked = Some("standby: the kubelet is down; takeover in 8 s if it stays down".to_owned());
    pending.blocked_by = Some(BlockedKind::Standby);
    assert!(row(&pending).ends_with("   the takeover"), "{}", row(&pending));
    assert!(!text(&pending, false).contains("Blocked"), "the role has it");
    // The kubelet does nothing, and the takeover never comes.
    report.role.as_mut().unwrap().reason = Some(StandbyReasonName::KubeletUnresponsive);
    assert!(row(&report).ends_with(&format!("blocked: {why}")), "{}", row(&report));
}

#[test]
fn lease_between_two_renewals_is_not_shown_as_down() {
    let mut report = report();
    report.role.as_mut().unwrap().probes[2].state = ProbeState::Down;
    let shown = text(&report, false);
    assert!(shown.contains(", Lease not renewed for 5m12s\n"), "{shown}");
}

#[test]
fn grace_period_that_has_not_begun_is_named_so() {
    let mut report = report();
    let paused = Trace {
        grace_left_ms: 30_000,
        ..Trace::sample()
    };
    let begun = Trace {
        grace_left_ms: 12_000,
        grace_end_ms: Some(30_000),
        grace_counted_from: GraceStart::Termination,
        ..Trace::sample()
    };
    report.pods.terminating = vec![paused, begun];
    let shown = text(&report, false);
    for grace in ["   30s (not begun)   ", "   12s   "] {
        assert!(shown.contains(grace), "{shown}");
    }
}

#[test]
fn agent_that_has_not_reached_the_runtime_says_that_it_has_not_probed_the_kubelet() {
    let mut report = report();
    report.role = Some(RoleReport::default());
    report.runtime.version = None;
    report.blocked = Some("the node was handed over to its kubelet".to_owned());
    let shown = text(&report, false);
    let lines = "\
Role      standby: the kubelet is not probed yet
Kubelet   not probed yet: the agent waits for the container runtime
Runtime   not reached yet
";
    assert!(shown.starts_with(lines), "{shown}");
    assert!(shown.contains("Blocked   the node was handed over"), "{shown}");
}

#[test]
fn reasons_have_lines_only_if_there_are_some() {
    let mut full = report();
    full.blocked = Some("a kubelet works".to_owned());
    full.watch.absence_hold = Some("a list was empty".to_owned());
    full.housekeeping.unmanaged = vec!["1234".to_owned()];
    full.quarantined_files = vec!["/journal.bad".to_owned()];
    let (bare, full) = (text(&report(), false), text(&full, false));
    for label in ["Blocked ", "Hold ", "Unmanaged ", "Journal "] {
        assert!(
            full.contains(&format!("\n{label}")) && !bare.contains(label),
            "{label}: {full}"
        );
    }
    assert!(full.contains("pod-teardown approve absence --digest "), "{full}");
}

#[test]
fn agent_that_only_observes_says_so_once() {
    let mut report = report();
    report.blocked = Some(blocked::Blocked::OnlyObserves.to_string());
    report.blocked_by = Some(BlockedKind::OnlyObserves);
    let role = report.role.take().unwrap();
    report.role = Some(RoleReport::before_first_probe(true));
    let unprobed = text(&report, false);
    assert!(
        unprobed.starts_with("Role      observing: it touches nothing; the kubelet is not probed yet\n"),
        "{unprobed}"
    );
    report.role = Some(role.observing(&RoleReport::default(), Timestamp::UNIX_EPOCH));
    let why = "it touches nothing; with --mode auto it would be standby (kubelet-alive)";
    assert_eq!(line(&report), format!("observing: {why}"));
    let text = text(&report, false);
    assert!(
        text.starts_with(&format!("Role      observing for 5m12s: {why}\n")),
        "{text}"
    );
    assert!(!text.contains("Blocked"), "{text}");
}

#[test]
fn collector_has_a_line_if_there_is_one() {
    let status = |collector: Option<CollectorReport>| {
        let report = StatusReport {
            collector,
            ..StatusReport::default()
        };
        text(&report, false)
    };
    assert!(!status(None).contains("Collector "));
    let (by, unseen) = (
        Some("another agent is active".to_owned()),
        Some("secrets (403)".to_owned()),
    );
    for (standby, not_synced, line) in [
        (None, None, "Collector active; all kinds are synced\n"),
        (None, unseen.clone(), "Collector active; not synced: secrets (403)\n"),
        (by, unseen, "Collector standby: another agent is active\n"),
    ] {
        let status = status(Some(CollectorReport { standby, not_synced }));
        assert!(status.contains(line), "{line:?} is not in {status}");
    }
}

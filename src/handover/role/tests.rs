use super::{super::probes::Probe, *};

const AFTER: Duration = Duration::from_secs(45);
const LONG: Duration = Duration::from_secs(3600);

/// The result of one probe; `Down` for this many seconds.
#[derive(Debug, Clone, Copy)]
enum Seen {
    Alive,
    Down(u64),
    Unknown,
}
use Seen::{Alive, Down, Unknown};

#[derive(Debug, Clone, Copy)]
struct Case {
    process: Seen,
    /// Seconds that the same process has been present.
    same: u64,
    /// It has answered at healthz or renewed the Lease.
    worked: bool,
    healthz: Seen,
    lease: Seen,
    up: Duration,
    before: Before,
}

/// The role before.
#[derive(Debug, Clone, Copy)]
enum Before {
    Kubelets,
    Active,
    /// An earlier run was active.
    Resuming,
}

/// All probes are Down for the whole threshold.
const DEAD: Case = Case {
    process: Down(45),
    same: 0,
    worked: true,
    healthz: Down(45),
    lease: Down(45),
    up: LONG,
    before: Before::Kubelets,
};
const OURS: Case = Case {
    before: Before::Active,
    ..DEAD
};
/// The agent has just restarted.
const AGAIN: Case = Case {
    process: Down(2),
    healthz: Down(0),
    lease: Down(0),
    before: Before::Resuming,
    ..DEAD
};

fn role(case: Case) -> Role {
    let start = Instant::now();
    let now = start + LONG;
    let mut probes = Probes::new(start, LONG, LONG);
    let seen = |seen: Seen| match seen {
        Alive => (Probe::Alive(String::new()), 0),
        Down(seconds) => (Probe::Down(String::new()), seconds),
        Unknown => (Probe::Unknown(String::new()), 0),
    };
    for (probe, of) in [
        (&mut probes.process, case.process),
        (&mut probes.healthz, case.healthz),
        (&mut probes.lease.probe, case.lease),
    ] {
        let (result, seconds) = seen(of);
        let first = now - Duration::from_secs(seconds);
        probe.add(result.clone(), &(first..first));
        probe.add(result, &(now..now));
    }
    if let Alive = case.lease {
        probes.lease.renewed = Some(now);
    }
    probes.same = Some((String::new(), now - Duration::from_secs(case.same)));
    probes.healthz.was_alive = case.worked;
    let before = match case.before {
        Before::Active => Role::Active,
        Before::Kubelets => Role::Standby(StandbyReason::Working),
        Before::Resuming => Role::Standby(StandbyReason::Resuming),
    };
    let thresholds = Thresholds {
        take_over_after: AFTER,
        up: case.up,
    };
    decide_role(&probes, thresholds, &before, now)
}

#[tokio::test(start_paused = true)]
async fn probes_decide_the_role() {
    let by = Role::Standby;
    let unseen_lease = by(StandbyReason::Unseen("renews the Lease of this Node"));
    let unseen_health = by(StandbyReason::Unseen("answers at the address of the kubelet's healthz"));
    let not_yet = |seconds| by(StandbyReason::NotYet(Duration::from_secs(seconds)));
    let unknown = |what: &str| by(StandbyReason::Unknown(format!("{what}: ")));
    let running = Case {
        process: Alive,
        same: 900,
        ..DEAD
    };
    let cases = [
        ("all probes down for the whole threshold", DEAD, Role::Active),
        // The kubelet process exists.
        (
            "all probes alive",
            Case {
                healthz: Alive,
                lease: Alive,
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "between two renewals",
            Case {
                healthz: Alive,
                lease: Down(9),
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "an outage of the API server",
            Case {
                healthz: Alive,
                lease: Unknown,
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "unhealthy, and renewing",
            Case {
                lease: Down(9),
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "healthy, and not renewing, as with an expired certificate",
            Case {
                healthz: Alive,
                ..running
            },
            by(StandbyReason::NotRenewing),
        ),
        ("unresponsive", running, by(StandbyReason::Unresponsive)),
        (
            "never worked",
            Case {
                worked: false,
                ..running
            },
            by(StandbyReason::Unresponsive),
        ),
        (
            "unresponsive, or an outage of the API server",
            Case {
                lease: Unknown,
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "the same, and it has never worked",
            Case {
                lease: Unknown,
                worked: false,
                ..running
            },
            by(StandbyReason::Started),
        ),
        (
            "has just started, after a long time or once more",
            Case {
                same: 20,
                worked: false,
                ..running
            },
            by(StandbyReason::Started),
        ),
        (
            "has just restarted, and its predecessor answered until then",
            Case {
                same: 4,
                worked: false,
                healthz: Down(4),
                lease: Down(9),
                ..running
            },
            by(StandbyReason::Started),
        ),
        (
            "the same with an answer",
            Case {
                same: 4,
                healthz: Alive,
                lease: Down(9),
                ..running
            },
            by(StandbyReason::Working),
        ),
        (
            "starts while the agent is active",
            Case {
                before: Before::Active,
                same: 0,
                worked: false,
                ..running
            },
            by(StandbyReason::Started),
        ),
        // The kubelet process does not exist.
        (
            "restart of the kubelet, 30 s",
            Case {
                process: Down(30),
                healthz: Down(30),
                ..DEAD
            },
            not_yet(15),
        ),
        (
            "none has worked for the threshold, and the last process has just exited",
            Case {
                process: Down(0),
                ..DEAD
            },
            Role::Active,
        ),
        (
            "the same on a node that boots",
            Case {
                process: Down(0),
                up: Duration::from_secs(100),
                ..DEAD
            },
            by(StandbyReason::Booting(Duration::from_secs(200))),
        ),
        (
            "the same during an outage of the API server",
            Case {
                process: Down(0),
                lease: Unknown,
                ..DEAD
            },
            unknown("whether the kubelet renews its Lease"),
        ),
        (
            "the same, and its last renewal is read after its exit",
            Case {
                process: Down(0),
                lease: Alive,
                ..DEAD
            },
            not_yet(45),
        ),
        (
            "healthz answered until a moment ago",
            Case {
                healthz: Down(3),
                ..DEAD
            },
            not_yet(42),
        ),
        (
            "its Lease was renewed until a moment ago",
            Case {
                lease: Down(40),
                ..DEAD
            },
            not_yet(5),
        ),
        (
            "its last renewal is read after its exit",
            Case {
                process: Down(10),
                lease: Alive,
                ..DEAD
            },
            not_yet(45),
        ),
        // Another probe contradicts the process probe.
        (
            "renewed by an unseen kubelet",
            Case { lease: Alive, ..DEAD },
            unseen_lease.clone(),
        ),
        (
            "healthz of an unseen kubelet",
            Case { healthz: Alive, ..DEAD },
            unseen_health.clone(),
        ),
        (
            "outage of the API server, kubelet down",
            Case { lease: Unknown, ..DEAD },
            unknown("whether the kubelet renews its Lease"),
        ),
        (
            "healthz not probed yet",
            Case {
                healthz: Unknown,
                ..DEAD
            },
            unknown("whether healthz answers"),
        ),
        (
            "process probe fails",
            Case {
                process: Unknown,
                ..DEAD
            },
            unknown("whether a kubelet runs here"),
        ),
        // The node boots.
        (
            "boot",
            Case {
                up: Duration::from_secs(100),
                ..DEAD
            },
            by(StandbyReason::Booting(Duration::from_secs(200))),
        ),
        (
            "boot, down for less than the threshold",
            Case {
                up: Duration::from_secs(20),
                healthz: Down(10),
                ..DEAD
            },
            not_yet(35),
        ),
        ("boot is over", Case { up: BOOT_GRACE, ..DEAD }, Role::Active),
        // An active agent.
        ("outage while active", Case { lease: Unknown, ..OURS }, Role::Active),
        (
            "healthz probe fails while active",
            Case {
                healthz: Unknown,
                ..OURS
            },
            Role::Active,
        ),
        (
            "process probe fails while active",
            Case {
                process: Unknown,
                ..OURS
            },
            unknown("whether a kubelet runs here"),
        ),
        (
            "the Lease is renewed while active",
            Case { lease: Alive, ..OURS },
            unseen_lease,
        ),
        (
            "healthz answers while active",
            Case { healthz: Alive, ..OURS },
            unseen_health.clone(),
        ),
        // The agent was active before its restart.
        ("no kubelet in between", AGAIN, Role::Active),
        (
            "a kubelet has renewed in between, and healthz is not known yet",
            Case {
                healthz: Unknown,
                lease: Alive,
                ..AGAIN
            },
            unknown("whether healthz answers"),
        ),
        (
            "a kubelet that starts at the same time may not be detected yet",
            Case {
                process: Down(1),
                ..AGAIN
            },
            by(StandbyReason::Resuming),
        ),
        (
            "its Lease is not known yet",
            Case {
                lease: Unknown,
                ..AGAIN
            },
            by(StandbyReason::Resuming),
        ),
        (
            "its health is not known yet",
            Case {
                healthz: Unknown,
                ..AGAIN
            },
            by(StandbyReason::Resuming),
        ),
        (
            "a kubelet has renewed in between",
            Case { lease: Alive, ..AGAIN },
            not_yet(45),
        ),
        (
            "a kubelet has started in between",
            Case {
                process: Alive,
                worked: false,
                ..AGAIN
            },
            by(StandbyReason::Started),
        ),
        (
            "an unseen kubelet is healthy",
            Case {
                healthz: Alive,
                ..AGAIN
            },
            unseen_health,
        ),
        (
            "process probe fails after a restart",
            Case {
                process: Unknown,
                ..AGAIN
            },
            unknown("whether a kubelet runs here"),
        ),
    ];
    for (what, case, expected) in cases {
        assert_eq!(role(case), expected, "{what}: {case:?}");
    }
}

#[test]
fn only_a_recent_active_role_of_this_boot_is_resumed() {
    let mark = |boot: &str, since_boot| Mark {
        boot_id: boot.to_owned(),
        since_boot: Duration::from_secs(since_boot),
        wall: jiff::Timestamp::UNIX_EPOCH,
    };
    let now = mark("b", 1000);
    for (had, resumes) in [
        (None, false),
        (Some(mark("b", 999)), true),
        (Some(mark("b", 955)), true),
        (Some(mark("b", 954)), false),
        (Some(mark("a", 999)), false),
    ] {
        let had = had.map(|at| LastActive {
            at,
            lease: String::new(),
        });
        let role = initial_role(had.as_ref(), AFTER, &now);
        assert_eq!(role == Role::Standby(StandbyReason::Resuming), resumes, "{had:?}");
        assert_ne!(role, Role::Active);
    }
}

#[tokio::test(start_paused = true)]
async fn answer_of_an_exited_process_does_not_show_another_kubelet() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::new(start, LONG, LONG);
    probes.process.add(Probe::Alive(String::new()), &at(1));
    probes.healthz.add(Probe::Alive(String::new()), &at(1));
    probes.process.add(Probe::Down(String::new()), &at(2));
    probes.lease.probe.add(Probe::Down(String::new()), &at(2));
    let thresholds = Thresholds {
        take_over_after: AFTER,
        up: LONG,
    };
    let role = |probes: &Probes| decide_role(probes, thresholds, &Role::Standby(StandbyReason::Working), at(3).end);
    assert_eq!(role(&probes), Role::Standby(StandbyReason::NotYet(AFTER)));
    probes.healthz.add(Probe::Alive(String::new()), &at(3));
    assert!(matches!(role(&probes), Role::Standby(StandbyReason::Unseen(_))));
}

#[tokio::test(start_paused = true)]
async fn time_until_the_takeover_decreases_between_two_probes() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::new(start, LONG, LONG);
    for probe in [&mut probes.process, &mut probes.healthz, &mut probes.lease.probe] {
        probe.add(Probe::Down(String::new()), &at(1));
    }
    let thresholds = Thresholds {
        take_over_after: AFTER,
        up: LONG,
    };
    let before = Role::Standby(StandbyReason::Working);
    let left = |now| decide_role(&probes, thresholds, &before, at(now).end);
    let not_yet = |left| Role::Standby(StandbyReason::NotYet(left));
    assert_eq!(left(1), not_yet(AFTER));
    assert_eq!(left(4), not_yet(AFTER - Duration::from_secs(3)));
    // No probe has shown it yet.
    assert_eq!(left(2 + AFTER.as_secs()), not_yet(Duration::ZERO));
}

/// What it did in its last moments shows only in probes after that.
#[tokio::test(start_paused = true)]
async fn gap_begins_with_probes_of_healthz_and_lease_after_the_exit() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::new(start, LONG, LONG);
    let down = || Probe::Down(String::new());
    let state = || Ok(Some("1".to_owned()));
    probes.add_process(Probe::Alive("pid 7".to_owned()), &at(0));
    for second in [1, 50] {
        probes.add_health(down(), &at(second));
        probes.add_lease(state(), &at(second));
    }
    probes.add_process(down(), &at(51));
    let thresholds = Thresholds {
        take_over_after: AFTER,
        up: LONG,
    };
    let role = |probes: &Probes| decide_role(probes, thresholds, &Role::Standby(StandbyReason::Started), at(52).end);
    assert_eq!(role(&probes), Role::Standby(StandbyReason::NotYet(Duration::ZERO)));
    probes.add_health(down(), &at(52));
    assert_eq!(role(&probes), Role::Standby(StandbyReason::NotYet(Duration::ZERO)));
    let mut renewed = probes.clone();
    renewed.add_lease(Ok(Some("2".to_owned())), &at(52));
    assert_eq!(role(&renewed), Role::Standby(StandbyReason::NotYet(AFTER)));
    probes.add_lease(state(), &at(52));
    assert_eq!(role(&probes), Role::Active);
}

/// The process probe must be as young as the conclusion, too.
#[tokio::test(start_paused = true)]
async fn takeover_needs_a_process_probe_after_the_threshold() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::new(start, LONG, LONG);
    for second in [0, AFTER.as_secs()] {
        probes.add_health(Probe::Down(String::new()), &at(second));
        probes.add_lease(Ok(None), &at(second));
    }
    probes.add_process(Probe::Down(String::new()), &at(0));
    probes.add_process(Probe::Down(String::new()), &at(AFTER.as_secs() - 1));
    let thresholds = Thresholds {
        take_over_after: AFTER,
        up: LONG,
    };
    let before = Role::Standby(StandbyReason::Working);
    let role = |probes: &Probes| decide_role(probes, thresholds, &before, at(AFTER.as_secs()).end);
    assert_eq!(role(&probes), Role::Standby(StandbyReason::NotYet(Duration::ZERO)));
    probes.add_process(Probe::Down(String::new()), &at(AFTER.as_secs()));
    assert_eq!(role(&probes), Role::Active);
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_failing_from_its_second_start_without_an_answer_for_the_threshold() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::new(start, LONG, LONG);
    let failing = |probes: &Probes, second| failing_starts(probes, AFTER, at(second).end).map(|starts| starts.count);
    probes.add_health(Probe::Down(String::new()), &at(0));
    probes.add_lease(Ok(None), &at(0));
    let start_at = |probes: &mut Probes, second: u64| {
        probes.add_process(Probe::Alive(second.to_string()), &at(second));
        probes.add_process(Probe::Down(String::new()), &at(second + 1));
    };
    start_at(&mut probes, 60);
    assert_eq!(failing(&probes, 62), None, "a kubelet that was down has started once");
    start_at(&mut probes, 70);
    assert_eq!(failing(&probes, 72), Some(2));
    probes.add_health(Probe::Unknown(String::new()), &at(73));
    assert_eq!(failing(&probes, 73), None);
    probes.add_health(Probe::Down(String::new()), &at(74));
    assert_eq!(failing(&probes, 118), None, "not for the threshold");
    assert_eq!(failing(&probes, 119), Some(2));
    for second in (120..=170).step_by(5) {
        probes.add_process(Probe::Alive("stays".to_owned()), &at(second));
    }
    assert_eq!(failing(&probes, 164), Some(3));
    assert_eq!(failing(&probes, 165), None, "it does not start again");
}

#[tokio::test(start_paused = true)]
async fn only_a_process_that_was_healthy_once_may_be_stopped() {
    let start = Instant::now();
    let at = |after| start + Duration::from_secs(after)..start + Duration::from_secs(after);
    let mut probes = Probes::new(start, LONG, LONG);
    let process = |pid: u32| Probe::Alive(format!("kubelet (pid {pid})"));
    probes.add_process(process(5), &at(0));
    assert!(may_fence(&probes).unwrap_err().contains("the address may be"));
    probes.add_health(Probe::Alive(String::new()), &at(45));
    assert_eq!(may_fence(&probes), Ok(()));
    // It restarted between two probes, perhaps with another healthz address.
    probes.add_process(process(6), &at(46));
    assert!(may_fence(&probes).unwrap_err().contains("the address may be"));
    probes.add_health(Probe::Alive(String::new()), &at(47));
    assert_eq!(may_fence(&probes), Ok(()));
}

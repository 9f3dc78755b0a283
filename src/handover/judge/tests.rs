use super::{super::probes::Probe, *};

const AFTER: Duration = Duration::from_secs(45);
const LONG: Duration = Duration::from_secs(3600);

/// What is seen of one sign: a sign of life, nothing for so many seconds, or nothing that counts.
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
    around: u64,
    /// For how long the same process is there.
    same: u64,
    tries: u32,
    healthz: Seen,
    lease: Seen,
    up: Duration,
    before: Before,
}

/// Whose turn it was.
#[derive(Debug, Clone, Copy)]
enum Before {
    Kubelets,
    Active,
    /// Of the agent before this one.
    Resumes,
}

/// Dead for long, and nothing else.
const DEAD: Case = Case {
    process: Down(45),
    around: 0,
    same: 0,
    tries: 1,
    healthz: Down(45),
    lease: Down(45),
    up: LONG,
    before: Before::Kubelets,
};
const OURS: Case = Case {
    before: Before::Active,
    ..DEAD
};
/// Started a moment ago.
const AGAIN: Case = Case {
    process: Down(2),
    healthz: Down(0),
    lease: Down(0),
    before: Before::Resumes,
    ..DEAD
};

fn turn(case: Case) -> Role {
    let start = Instant::now();
    let now = start + LONG;
    let mut probes = Probes::unseen(start, LONG, LONG);
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
        let (look, seconds) = seen(of);
        let first = now - Duration::from_secs(seconds);
        probe.see(look.clone(), &(first..first));
        probe.see(look, &(now..now));
    }
    if let Alive = case.lease {
        probes.lease.renewed = Some(now);
    }
    probes.around = (case.around > 0).then(|| now - Duration::from_secs(case.around));
    probes.same = Some((String::new(), now - Duration::from_secs(case.same)));
    probes.tries = case.tries;
    let before = match case.before {
        Before::Active => Role::Active,
        Before::Kubelets => Role::Standby(Why::Works),
        Before::Resumes => Role::Standby(Why::Resumes),
    };
    let terms = Terms {
        take_over_after: AFTER,
        up: case.up,
    };
    judge(&probes, terms, &before, now)
}

#[tokio::test(start_paused = true)]
async fn whose_turn_it_is() {
    let by = Role::Standby;
    let unseen_lease = by(Why::Unseen("renews the Lease of this Node"));
    let unseen_health = by(Why::Unseen("answers where a kubelet tells its health"));
    let not_yet = |seconds| by(Why::NotYet(Duration::from_secs(seconds)));
    let unknown = |what: &str| by(Why::Unknown(format!("{what}: ")));
    let running = Case {
        process: Alive,
        around: 900,
        same: 900,
        ..DEAD
    };
    let cases = [
        ("dead in every way, for the whole threshold", DEAD, Role::Active),
        // The kubelet is there.
        (
            "all is well",
            Case {
                healthz: Alive,
                lease: Alive,
                ..running
            },
            by(Why::Works),
        ),
        (
            "between two renewals",
            Case {
                healthz: Alive,
                lease: Down(9),
                ..running
            },
            by(Why::Works),
        ),
        (
            "an outage of the API server",
            Case {
                healthz: Alive,
                lease: Unknown,
                ..running
            },
            by(Why::Works),
        ),
        (
            "unhealthy, and renewing",
            Case {
                lease: Down(9),
                ..running
            },
            by(Why::Works),
        ),
        (
            "healthy, and not renewing",
            Case {
                healthz: Alive,
                ..running
            },
            by(Why::Works),
        ),
        ("wedged", running, by(Why::Wedged)),
        (
            "wedged, in an outage: not known",
            Case {
                lease: Unknown,
                ..running
            },
            by(Why::Works),
        ),
        (
            "started again a moment ago, after a long time",
            Case {
                around: 20,
                same: 20,
                ..running
            },
            by(Why::Works),
        ),
        (
            "started again a moment ago, after less than the threshold",
            Case { same: 4, ..running },
            by(Why::Works),
        ),
        (
            "started again a moment ago, and so it goes on",
            Case {
                same: 4,
                tries: 3,
                ..running
            },
            by(Why::InVain),
        ),
        (
            "about to be started again, and so it goes on",
            Case {
                process: Down(5),
                around: 900,
                tries: 3,
                ..DEAD
            },
            by(Why::InVain),
        ),
        (
            "the same in an outage: not known",
            Case {
                process: Down(5),
                around: 900,
                tries: 3,
                lease: Unknown,
                ..DEAD
            },
            unknown("whether the kubelet renews its Lease"),
        ),
        (
            "started a second time in vain",
            Case {
                process: Down(5),
                around: 900,
                tries: 2,
                ..DEAD
            },
            not_yet(40),
        ),
        (
            "not started any more after many times in vain",
            Case { tries: 30, ..DEAD },
            Role::Active,
        ),
        (
            "came back while it was our turn",
            Case {
                before: Before::Active,
                around: 1,
                ..running
            },
            by(Why::Works),
        ),
        // It is away.
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
            "the process has gone last",
            Case {
                process: Down(44),
                ..DEAD
            },
            not_yet(1),
        ),
        (
            "its health was told until a moment ago",
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
            "its last renewal is seen after its end",
            Case {
                process: Down(10),
                lease: Alive,
                ..DEAD
            },
            not_yet(45),
        ),
        // Something else is wrong.
        (
            "renewed by nobody to be seen",
            Case { lease: Alive, ..DEAD },
            unseen_lease.clone(),
        ),
        (
            "health told by nobody to be seen",
            Case { healthz: Alive, ..DEAD },
            unseen_health.clone(),
        ),
        (
            "outage of the API server, the kubelet dead",
            Case { lease: Unknown, ..DEAD },
            unknown("whether the kubelet renews its Lease"),
        ),
        (
            "healthz not seen yet",
            Case {
                healthz: Unknown,
                ..DEAD
            },
            unknown("whether the kubelet tells its health"),
        ),
        (
            "processes cannot be seen",
            Case {
                process: Unknown,
                ..DEAD
            },
            unknown("whether a kubelet runs here"),
        ),
        // The machine, or the kubelet, starts.
        (
            "boot",
            Case {
                up: Duration::from_secs(100),
                ..DEAD
            },
            by(Why::Boots(Duration::from_secs(200))),
        ),
        (
            "boot, not seen for long",
            Case {
                up: Duration::from_secs(20),
                process: Down(10),
                ..DEAD
            },
            not_yet(35),
        ),
        ("boot is over", Case { up: BOOT, ..DEAD }, Role::Active),
        // It is ours, and stays so.
        ("outage while it is ours", Case { lease: Unknown, ..OURS }, Role::Active),
        (
            "healthz cannot be asked while it is ours",
            Case {
                healthz: Unknown,
                ..OURS
            },
            Role::Active,
        ),
        (
            "processes cannot be seen while it is ours",
            Case {
                process: Unknown,
                ..OURS
            },
            unknown("whether a kubelet runs here"),
        ),
        (
            "somebody renews while it is ours",
            Case { lease: Alive, ..OURS },
            unseen_lease,
        ),
        (
            "somebody answers while it is ours",
            Case { healthz: Alive, ..OURS },
            unseen_health.clone(),
        ),
        // It was that of the agent before this one.
        ("nothing has come meanwhile", AGAIN, Role::Active),
        (
            "a kubelet has renewed meanwhile, and its health is not known yet",
            Case {
                healthz: Unknown,
                lease: Alive,
                ..AGAIN
            },
            unknown("whether the kubelet tells its health"),
        ),
        (
            "one that starts at the same time may not be seen yet",
            Case {
                process: Down(1),
                ..AGAIN
            },
            by(Why::Resumes),
        ),
        (
            "its Lease is not known yet",
            Case {
                lease: Unknown,
                ..AGAIN
            },
            by(Why::Resumes),
        ),
        (
            "its health is not known yet",
            Case {
                healthz: Unknown,
                ..AGAIN
            },
            by(Why::Resumes),
        ),
        (
            "a kubelet has renewed meanwhile",
            Case { lease: Alive, ..AGAIN },
            not_yet(45),
        ),
        (
            "a kubelet has come meanwhile",
            Case {
                process: Alive,
                around: 1,
                ..AGAIN
            },
            by(Why::Works),
        ),
        (
            "one is well that is not seen",
            Case {
                healthz: Alive,
                ..AGAIN
            },
            unseen_health,
        ),
        (
            "processes cannot be seen after a restart",
            Case {
                process: Unknown,
                ..AGAIN
            },
            unknown("whether a kubelet runs here"),
        ),
    ];
    for (what, case, expected) in cases {
        assert_eq!(turn(case), expected, "{what}: {case:?}");
        assert!(
            Role::KINDS.contains(&expected.kind()),
            "{what}: its metric has no {}",
            expected.kind()
        );
    }
}

#[test]
fn only_what_an_agent_had_a_moment_ago_in_this_boot_is_resumed() {
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
        let had = had.map(|at| OwnTurn {
            at,
            lease: String::new(),
        });
        let turn = first(had.as_ref(), AFTER, &now);
        assert_eq!(turn == Role::Standby(Why::Resumes), resumes, "{had:?}");
        assert_ne!(turn, Role::Active);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_process_answered_before_its_end_is_no_sign_of_another_one() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds)..start + Duration::from_secs(seconds);
    let mut probes = Probes::unseen(start, LONG, LONG);
    probes.process.see(Probe::Alive(String::new()), &at(1));
    probes.healthz.see(Probe::Alive(String::new()), &at(1));
    probes.process.see(Probe::Down(String::new()), &at(2));
    probes.lease.probe.see(Probe::Down(String::new()), &at(2));
    let terms = Terms {
        take_over_after: AFTER,
        up: LONG,
    };
    let turn = |probes: &Probes| judge(probes, terms, &Role::Standby(Why::Works), at(3).end);
    assert_eq!(turn(&probes), Role::Standby(Why::NotYet(AFTER)));
    probes.healthz.see(Probe::Alive(String::new()), &at(3));
    assert!(matches!(turn(&probes), Role::Standby(Why::Unseen(_))));
}

#[tokio::test(start_paused = true)]
async fn only_one_process_that_told_its_health_once_and_was_there_all_the_time_is_stopped() {
    let start = Instant::now();
    let seconds = Duration::from_secs;
    let at = |after| start + seconds(after);
    let mut probes = Probes::unseen(start, seconds(5), seconds(15));
    let see = |probes: &mut Probes, pid: u32, from: u64, to: u64| {
        for second in from..=to {
            probes.see_process(
                Probe::Alive(format!("kubelet (pid {pid})")),
                &(at(second)..at(second)),
                AFTER,
            );
        }
    };
    see(&mut probes, 5, 0, 45);
    assert!(
        may_fence(&probes, AFTER, at(45))
            .unwrap_err()
            .contains("told elsewhere")
    );
    probes.healthz.see(Probe::Alive(String::new()), &(at(45)..at(45)));
    assert_eq!(may_fence(&probes, AFTER, at(45)), Ok(()));
    assert!(may_fence(&probes, AFTER + seconds(1), at(45)).is_err());
    // It was started again between two looks.
    see(&mut probes, 6, 46, 80);
    assert!(
        may_fence(&probes, AFTER, at(80))
            .unwrap_err()
            .contains("again and again")
    );
    assert_eq!(probes.tries, 0, "the one before had told its health");
    see(&mut probes, 6, 81, 91);
    assert!(
        may_fence(&probes, AFTER, at(91))
            .unwrap_err()
            .contains("told elsewhere"),
        "that one may tell it elsewhere"
    );
    probes.healthz.see(Probe::Alive(String::new()), &(at(91)..at(91)));
    assert_eq!(may_fence(&probes, AFTER, at(91)), Ok(()));
    probes.healthz.see(Probe::Down(String::new()), &(at(92)..at(92)));
    see(&mut probes, 7, 92, 92);
    see(&mut probes, 7, 100, 100);
    assert_eq!(
        (probes.tries, probes.one_process(at(100))),
        (1, Some(seconds(0))),
        "after a gap it begins anew"
    );
    see(&mut probes, 8, 101, 101);
    see(&mut probes, 9, 102, 102);
    assert_eq!(probes.tries, 3);
}

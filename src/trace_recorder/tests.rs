use super::*;

fn record() -> TraceRecorder {
    let pod = PodRef {
        uid: "u".into(),
        namespace: "ns".into(),
        name: "pod".into(),
    };
    let grace = Duration::from_secs(30);
    TraceRecorder::new(pod, Cause::Deleted, grace, Some(Instant::now() + grace))
}

#[tokio::test(start_paused = true)]
async fn span_ends_when_dropped_and_keeps_its_failure() {
    let record = record();
    let open = record.span(Step::Term, "main");
    tokio::time::advance(Duration::from_secs(2)).await;
    let kill = open.then(Step::Kill, "main");
    tokio::time::advance(Duration::from_secs(1)).await;
    kill.failed("hangs");
    let trace = record.trace();
    let times: Vec<_> = trace
        .spans
        .iter()
        .map(|span| (span.step, span.start_ms, span.end_ms))
        .collect();
    assert_eq!(times, [(Step::Term, 0, Some(2000)), (Step::Kill, 2000, Some(3000))]);
    assert_eq!(trace.spans[1].failure.as_deref(), Some("hangs"));
    assert_eq!((trace.grace_seconds, trace.grace_left_ms), (30, 27_000));
}

#[tokio::test(start_paused = true)]
async fn each_change_of_the_trace_notifies_subscribers() {
    type Change = fn(&TraceRecorder);
    let changes: [(&str, Change); 11] = [
        ("grace", |record| record.set_grace(Duration::from_secs(5), None)),
        ("attempt", TraceRecorder::begin_attempt),
        ("blocked", |record| record.set_blocked(Vec::new())),
        ("mismatch", |record| record.set_mismatch(None)),
        ("finalizers", |record| {
            record.change(|trace| trace.finalizers = vec!["test/keep".into()]);
        }),
        ("canceled", |record| {
            record.change(|trace| trace.canceled_because = Some("a kubelet came".into()));
        }),
        ("runtime state", |record| {
            record.set_runtime_state(Some("wrong".into()), None);
        }),
        ("sandbox error", |record| {
            record.change(|trace| trace.sandbox_error = Some("no CNI".into()));
        }),
        ("stage", |record| record.set_stage(Stage::Finished)),
        ("kept", TraceRecorder::set_kept),
        ("span", |record| drop(record.span(Step::Term, "main"))),
    ];
    for (name, change) in changes {
        let record = record();
        let progress = record.subscribe();
        change(&record);
        assert!(progress.has_changed().unwrap(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn trace_of_an_earlier_run_continues() {
    let mark = |boot_id: &str, since_boot, wall| Mark {
        boot_id: boot_id.to_owned(),
        since_boot: Duration::from_secs(since_boot),
        wall: Timestamp::from_second(wall).unwrap(),
    };
    let begun = mark("a", 100, 5000);
    // The wall clock was set back; the node was rebooted; both.
    for (now, taken) in [
        (mark("a", 107, 1000), 7_000),
        (mark("b", 3, 5060), 60_000),
        (mark("b", 3, 1000), 0),
    ] {
        let record = record().resumed(&begun, &now);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(record.span(Step::Term, "main"));
        let trace = record.trace();
        assert_eq!((trace.began, trace.resumed), (begun.wall, Some(now.wall)));
        assert_eq!(trace.elapsed_ms, taken + 2_000);
        assert_eq!(trace.spans[0].start_ms, taken + 2_000);
    }
}

#[tokio::test(start_paused = true)]
async fn grace_period_that_has_not_begun_is_not_reduced() {
    let grace = Duration::from_secs(30);
    let record = TraceRecorder::new(record().pod().clone(), Cause::Deleted, grace, None);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(record.trace().grace_left_ms, 30_000);
    record.set_grace(grace, Some(Instant::now() + grace));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(record.trace().grace_left_ms, 20_000);
}

#[tokio::test(start_paused = true)]
async fn number_of_spans_is_limited() {
    let record = record();
    for _ in 0..1000 {
        record.span(Step::Sandbox, "").failed("no CNI");
    }
    assert_eq!(record.trace().spans.len(), MAX_SPANS);
}

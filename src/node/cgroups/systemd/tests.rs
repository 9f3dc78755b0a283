//! On a bus of each test's own, behind which a systemd does as it is told.

use std::{future::pending, path::Path, sync::Mutex as StdMutex};

use tokio::net::UnixListener;
use zbus::{Guid, ObjectPath};

use super::{
    super::{Qos, pod_slice_name},
    *,
};

const JOB: &str = "/org/freedesktop/systemd1/job/7";

/// How the systemd behind the bus does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// As it ought to.
    Well,
    /// The job ends with another result.
    Fails,
    /// It knows of no such unit.
    KnowsNothing,
    /// The job does not end.
    Hangs,
    /// The connection ends at the first question.
    HangsUp,
}

type Asked = Arc<StdMutex<Vec<String>>>;

fn pod() -> PodCgroup {
    pod_slice_name("/", Qos::Guaranteed, "u").unwrap()
}

/// A bus at which every connection is served so; the last way serves all further ones.
fn bus(dir: &Path, ways: &'static [Does]) -> (Systemd, Asked) {
    let asked = Asked::default();
    let listener = UnixListener::bind(dir.join("bus")).unwrap();
    let told = asked.clone();
    tokio::spawn(async move {
        for nth in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let does = ways[nth.min(ways.len() - 1)];
            tokio::spawn(serve(stream.into_std().unwrap(), does, told.clone()));
        }
    });
    let systemd = Systemd {
        bus: Some(format!("unix:path={}", dir.join("bus").display()).into()),
        ..Systemd::default()
    };
    (systemd, asked)
}

async fn serve(stream: std::os::unix::net::UnixStream, does: Does, asked: Asked) -> zbus::Result<()> {
    let bus = Builder::unix_stream(stream)
        .server(Guid::generate())
        .p2p()
        .build()
        .await?;
    let mut calls = MessageStream::from(&bus);
    while let Some(call) = calls.next().await {
        let call = call?;
        let header = call.header();
        let member = header.member().map(ToString::to_string).unwrap_or_default();
        asked.lock().unwrap().push(member.clone());
        match member.as_str() {
            "Hello" => bus.reply(&header, &":1.7").await?,
            "GetUnit" if does == Does::HangsUp => return bus.close().await,
            "GetUnit" if does == Does::KnowsNothing => bus.reply_error(&header, NO_SUCH_UNIT, &"no").await?,
            "StopUnit" => {
                let job = ObjectPath::try_from(JOB)?;
                let result = if does == Does::Fails { "timeout" } else { "done" };
                if does != Does::Hangs {
                    // Before the answer, as it may come.
                    let end = (7u32, &job, "kubepods-podu.slice", result);
                    bus.emit_signal(None::<&str>, OBJECT, MANAGER, "JobRemoved", &end)
                        .await?;
                }
                bus.reply(&header, &job).await?;
            }
            "ResetFailedUnit" => bus.reply_error(&header, NO_SUCH_UNIT, &"not failed").await?,
            _ => bus.reply(&header, &()).await?,
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_slice_is_stopped_and_its_job_awaited_on_one_connection_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Does::Well]);
    for _ in 0..2 {
        assert_eq!(systemd.stop(&pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    }
    let asked = asked.lock().unwrap();
    let count = |what: &str| asked.iter().filter(|asked| *asked == what).count();
    assert_eq!(
        ["Hello", "Subscribe", "StopUnit", "ResetFailedUnit"].map(count),
        [1, 1, 2, 2],
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_job_that_fails_is_no_reason_to_keep_the_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Does::Fails]);
    assert_eq!(systemd.stop(&pod(), &Effects::ungated()).await, Ok(Outcome::Done));
}

#[tokio::test]
async fn a_unit_that_is_not_loaded_is_not_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Does::KnowsNothing]);
    assert_eq!(systemd.stop(&pod(), &Effects::ungated()).await, Ok(Outcome::Nothing));
    assert!(!asked.lock().unwrap().contains(&"StopUnit".to_owned()));
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_anew_once() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Does::HangsUp, Does::Well]);
    assert_eq!(systemd.stop(&pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Does::HangsUp]);
    assert!(systemd.stop(&pod(), &Effects::ungated()).await.is_err());
    assert_eq!(
        asked.lock().unwrap().iter().filter(|asked| *asked == "Hello").count(),
        2
    );
}

#[tokio::test]
async fn a_job_that_does_not_end_is_given_up_with_what_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Does::Hangs, Does::Well]);
    let effects = Effects::ungated();
    let stop = async { systemd.stop(&pod(), &effects).await };
    let watch = async {
        while !asked.lock().unwrap().contains(&"StopUnit".to_owned()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // From here on nothing is said: time may run.
        tokio::time::pause();
        pending::<()>().await;
    };
    let stopped = tokio::select! {
        stopped = stop => stopped,
        () = watch => unreachable!("it waits for ever"),
    };
    tokio::time::resume();
    let told = stopped.unwrap_err().to_string();
    assert!(
        told.contains("within 30s") && told.contains("systemctl status kubepods-podu.slice"),
        "{told}"
    );
    assert_eq!(
        systemd.stop(&pod(), &effects).await,
        Ok(Outcome::Done),
        "the next attempt begins anew"
    );
}

#[tokio::test]
async fn a_bus_that_is_away_or_says_nothing_is_a_failure_with_a_remedy_and_no_hang() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Systemd {
        bus: Some(format!("unix:path={}", dir.path().join(name).display()).into()),
        ..Systemd::default()
    };
    let _silent = UnixListener::bind(dir.path().join("silent")).unwrap();
    tokio::time::pause();
    for (name, why) in [("away", "No such file"), ("silent", "no answer within 5s")] {
        let told = at(name)
            .stop(&pod(), &Effects::ungated())
            .await
            .unwrap_err()
            .to_string();
        assert!(told.contains(why) && told.contains("systemctl status dbus"), "{told}");
        assert!(at(name).version().await.unwrap_err().contains(why));
    }
}

#[tokio::test]
async fn a_dry_run_and_a_shut_gate_connect_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Does::Well]);
    let dry = Effects::new(true, Arc::new(|| Ok(())));
    assert_eq!(systemd.stop(&pod(), &dry).await, Ok(Outcome::Withheld));
    let held = || crate::node::effects::Held {
        reason: "a kubelet is here".to_owned(),
    };
    let shut = Effects::new(false, Arc::new(move || Err(held())));
    assert!(systemd.stop(&pod(), &shut).await.unwrap_err().is_held());
    assert!(asked.lock().unwrap().is_empty());
}

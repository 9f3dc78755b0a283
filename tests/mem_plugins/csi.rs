//! Calls of a CSI driver.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pod_teardown::node::{
    grpc::{CallFailure, GrpcError},
    plugins::Csi,
};
use pod_teardown::{model::blocked::Blocked, node::effects::Effects};
use testbed::drivers::{Behavior, CsiCall, CsiDriver};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{Root, gated, secs};

const DRIVER: &str = "disk.example.com";
const VOLUME: &str = "vol/../0123";
const TARGET: &str = "/no/such/pods/u1/volumes/kubernetes.io~csi/pv-1/mount";

async fn start() -> (Root, CsiDriver, Csi) {
    let root = Root::new();
    let driver = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let csi = root.read().await.csi(DRIVER).await.unwrap();
    (root, driver, csi)
}

async fn unpublish(csi: &Csi, effects: &Effects) -> Result<(), GrpcError> {
    csi.unpublish(VOLUME, Path::new(TARGET), effects).await
}

#[tokio::test(start_paused = true)]
async fn calls_name_the_volume_and_its_path() {
    let (_root, driver, csi) = start().await;
    assert_eq!(unpublish(&csi, &Effects::ungated()).await, Ok(()));
    assert_eq!(
        csi.unstage(VOLUME, Path::new(TARGET), &Effects::ungated()).await,
        Ok(())
    );
    let expected = [
        CsiCall::Unpublish {
            volume_id: VOLUME.to_owned(),
            target_path: TARGET.into(),
        },
        CsiCall::Unstage {
            volume_id: VOLUME.to_owned(),
            staging_target_path: TARGET.into(),
        },
    ];
    assert_eq!(driver.effects(), expected);
}

#[tokio::test(start_paused = true)]
async fn staging_capability_is_read_each_time() {
    let (_root, driver, csi) = start().await;
    for stages in [true, false, true] {
        driver.stages(stages);
        assert_eq!(csi.supports_staging().await, Ok(stages));
    }
    assert_eq!(driver.called().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn every_error_code_is_a_failure_including_not_found() {
    let (_root, driver, csi) = start().await;
    for code in (1..=16).map(Code::from_i32) {
        driver.behave_for(1, Behavior::Fails(code, "volume is\nunknown".to_owned()));
        let error = unpublish(&csi, &Effects::ungated()).await.unwrap_err();
        let CallFailure::Failed {
            code: found,
            ref message,
        } = error.failure
        else {
            panic!("{error}")
        };
        assert_eq!((found, &**message), (code, "volume is\\nunknown"));
        let text = error.to_string();
        let expected = format!(
            "NodeUnpublishVolume of driver \"{DRIVER}\" for volume \"{VOLUME}\": {code:?}: volume is\\nunknown"
        );
        assert_eq!(text, expected);
    }
    assert_eq!(unpublish(&csi, &Effects::ungated()).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn hanging_driver_times_out_at_its_deadline() {
    let (_root, driver, csi) = start().await;
    driver.behave(Behavior::Hangs);
    let begun = Instant::now();
    let error = unpublish(&csi, &Effects::ungated()).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(120));
    assert!(error.failure == CallFailure::Timeout(secs(120)), "{error}");
    driver.behave(Behavior::Slow(secs(119)));
    assert_eq!(unpublish(&csi, &Effects::ungated()).await, Ok(()));
    driver.behave_if(|call| *call == CsiCall::Capabilities, Behavior::Hangs);
    let task = tokio::spawn(async move { (unpublish(&csi, &Effects::ungated()).await, csi.supports_staging().await) });
    let (unpublished, stages) = task.await.unwrap();
    assert_eq!(unpublished, Ok(()));
    assert!(matches!(stages.unwrap_err().failure, CallFailure::Timeout(_)));
}

#[tokio::test(start_paused = true)]
async fn missing_or_crashing_driver_is_unreachable_at_once() {
    let (_root, driver, csi) = start().await;
    driver.behave(Behavior::Hangs);
    let effects = Effects::ungated();
    let (cut, ()) = futures::join!(csi.unstage(VOLUME, Path::new(TARGET), &effects), async {
        sleep(secs(3)).await;
        driver.crash().await;
    });
    let error = cut.unwrap_err();
    assert!(error.is_unreachable() && !error.is_blocked(), "{error}");

    let begun = Instant::now();
    let error = unpublish(&csi, &Effects::ungated()).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(0));
    assert_eq!(
        error.to_string(),
        format!(
            "NodeUnpublishVolume of driver \"{DRIVER}\" for volume \"{VOLUME}\": the driver cannot be reached: Connection refused"
        )
    );
    driver.come_back().unwrap();
    driver.behave(Behavior::Well);
    assert_eq!(unpublish(&csi, &Effects::ungated()).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn shut_gate_sends_nothing() {
    let (_root, driver, csi) = start().await;
    let (effects, shut) = gated();
    shut.store(true, Ordering::Relaxed);
    let error = unpublish(&csi, &effects).await.unwrap_err();
    assert!(error.is_blocked(), "{error}");
    assert_eq!(driver.called(), []);
    assert_eq!(csi.supports_staging().await, Ok(true), "a read is no effect");

    shut.store(false, Ordering::Relaxed);
    assert_eq!(unpublish(&csi, &effects).await, Ok(()));
    assert_eq!(driver.effects().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn path_that_is_not_utf8_is_not_sent() {
    let (_root, driver, csi) = start().await;
    let path = Path::new(OsStr::from_bytes(b"/pods/\xff"));
    let error = csi.unpublish(VOLUME, path, &Effects::ungated()).await.unwrap_err();
    assert!(error.failure == CallFailure::PathNotUtf8, "{error}");
    assert_eq!(driver.called(), []);
}

#[tokio::test(start_paused = true)]
async fn gate_that_shuts_while_connecting_blocks_the_call() {
    let (_root, driver, csi) = start().await;
    let asked = AtomicUsize::new(0);
    let gate = move || match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Blocked::Other("a kubelet is here".to_owned())),
    };
    let error = unpublish(&csi, &Effects::new(Arc::new(gate))).await.unwrap_err();
    assert!(error.is_blocked(), "{error}");
    assert_eq!(driver.called(), []);
}

#[tokio::test(start_paused = true)]
async fn call_in_flight_is_canceled_when_the_gate_shuts() {
    let (_root, driver, csi) = start().await;
    driver.behave(Behavior::Hangs);
    let is_shut = Arc::new(AtomicBool::new(false));
    let shut = Arc::clone(&is_shut);
    let gate = move || {
        let reason = "a kubelet is here".to_owned();
        if shut.load(Ordering::SeqCst) {
            Err(Blocked::Other(reason))
        } else {
            Ok(())
        }
    };
    let effects = Effects::new(Arc::new(gate));
    let begun = Instant::now();
    let appears = async {
        sleep(secs(7)).await;
        is_shut.store(true, Ordering::SeqCst);
    };
    let (answer, ()) = tokio::join!(unpublish(&csi, &effects), appears);
    assert!(answer.unwrap_err().is_blocked());
    // Such a gate is checked every second.
    assert!(begun.elapsed() <= secs(8) && driver.effects().len() == 1);
}

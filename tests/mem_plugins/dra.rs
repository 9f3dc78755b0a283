//! Calls of a DRA driver.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use pod_teardown::node::dirs::Dir;
use pod_teardown::node::dra_checkpoint;
use pod_teardown::node::effects::Effects;
use pod_teardown::node::{
    grpc::CallFailure,
    plugins::{ClaimRef, Dra, Unprepared},
};
use testbed::drivers::claims::{Prepared, write_checkpoint};
use testbed::drivers::{Behavior, DraCall, DraDriver, DraService};
use tokio::time::Instant;
use tonic::Code;

use crate::{Root, gated, secs};

const GPU: &str = "gpu.example.com";

async fn start(services: &[DraService]) -> (Root, DraDriver, Dra) {
    let root = Root::new();
    let driver = DraDriver::start(&root.path(), GPU, services).unwrap();
    let plugin = root.read().await.dra(GPU).await.unwrap();
    (root, driver, plugin)
}

fn claim(uid: &str) -> ClaimRef {
    ClaimRef {
        namespace: "shop".to_owned(),
        uid: uid.to_owned(),
        name: format!("claim-{uid}"),
    }
}

#[tokio::test(start_paused = true)]
async fn all_claims_are_sent_in_one_call_to_the_registered_service() {
    for service in [DraService::V1, DraService::V1beta1] {
        let (_root, driver, plugin) = start(&[service]).await;
        let answer = plugin.unprepare(&[claim("c1"), claim("c2")], &Effects::ungated()).await;
        let expected = Unprepared {
            failed: BTreeMap::new(),
            unknown: vec![],
        };
        assert_eq!(answer, Ok(expected));
        let sent = |uid: &str| ("shop".to_owned(), format!("claim-{uid}"), uid.to_owned());
        let calls: Vec<_> = driver.called().into_iter().map(|called| called.call).collect();
        let claims = vec![sent("c1"), sent("c2")];
        assert_eq!(calls, [DraCall { service, claims }]);
    }
}

#[tokio::test(start_paused = true)]
async fn plugin_without_its_registered_service_is_reported_with_the_service() {
    let (_root, _driver, plugin) = start(&[DraService::V1beta1]).await;
    let wrong = Dra::new(GPU, &plugin.endpoint, "v1.DRAPlugin");
    let error = wrong.unprepare(&[claim("c1")], &Effects::ungated()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("Unimplemented") && text.contains("the call was of v1.DRAPlugin"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_claims_in_the_answer_without_error_are_unprepared() {
    let (_root, driver, plugin) = start(&[DraService::V1]).await;
    driver.fails_for("c1", "device is busy");
    driver.passes_over("c2");
    driver.answers_also_for("stranger");
    let claims = [claim("c1"), claim("c2"), claim("c3")];
    let answer = plugin.unprepare(&claims, &Effects::ungated()).await;
    let expected = Unprepared {
        failed: [("c1", "device is busy"), ("c2", "the driver's answer lacks it")]
            .map(|(uid, error)| (uid.to_owned(), error.to_owned()))
            .into(),
        unknown: vec!["stranger".to_owned()],
    };
    assert_eq!(answer, Ok(expected));

    driver.behave_for(1, Behavior::Pretends);
    let answer = plugin.unprepare(&claims, &Effects::ungated()).await.unwrap();
    assert_eq!(answer.failed.len(), 3, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_driver_name_the_claims() {
    let (_root, driver, plugin) = start(&[DraService::V1]).await;
    driver.behave_for(1, Behavior::Fails(Code::Internal, "no".to_owned()));
    let error = plugin.unprepare(&[claim("c1")], &Effects::ungated()).await.unwrap_err();
    let text = format!("NodeUnprepareResources of driver \"{GPU}\" for \"shop/claim-c1 (c1)\": Internal: no");
    assert_eq!(error.to_string(), text);

    driver.behave_for(1, Behavior::Hangs);
    let begun = Instant::now();
    let error = plugin.unprepare(&[claim("c1")], &Effects::ungated()).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(45));
    assert!(matches!(error.failure, CallFailure::Timeout(_)), "{error}");

    driver.crash().await;
    let error = plugin.unprepare(&[claim("c1")], &Effects::ungated()).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn shut_gate_unprepares_nothing() {
    let (_root, driver, plugin) = start(&[DraService::V1]).await;
    let (effects, shut) = gated();
    shut.store(true, Ordering::Relaxed);
    assert!(
        plugin
            .unprepare(&[claim("c1")], &effects)
            .await
            .unwrap_err()
            .is_blocked()
    );
    assert_eq!(driver.called(), []);
}

#[tokio::test(start_paused = true)]
async fn claims_in_a_checkpoint_lead_to_their_drivers() {
    let (root, driver, _) = start(&[DraService::V1]).await;
    let prepared = Prepared {
        uid: "c1",
        namespace: "shop",
        name: "claim-c1",
        pods: &["u1"],
        drivers: &[GPU],
    };
    let others = Prepared {
        uid: "c2",
        pods: &["u2"],
        ..prepared
    };
    write_checkpoint(&root.path(), &[prepared, others]).unwrap();
    let dir = Dir::open(&root.path()).unwrap().unwrap();
    let claims = dra_checkpoint::read(&dir).unwrap().unwrap();
    assert_eq!(claims.len(), 2);

    let unprepared = tokio::spawn(async move {
        let held = claims.iter().find(|claim| claim.pods.contains("u1")).unwrap();
        let name = held.drivers.first().unwrap();
        let plugin = root.read().await.dra(name).await.unwrap();
        plugin
            .unprepare(std::slice::from_ref(&held.claim), &Effects::ungated())
            .await
    });
    let answer = unprepared.await.unwrap().unwrap();
    assert_eq!(answer.failed, BTreeMap::new());
    assert_eq!(driver.called().len(), 1);
}

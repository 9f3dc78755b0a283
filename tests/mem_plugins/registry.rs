//! Registrations.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use pod_teardown::node::dirs::Dir;
use pod_teardown::node::effects::Effects;
use pod_teardown::node::fault::Cause;
use pod_teardown::node::{
    grpc::CallFailure,
    plugins::{Csi, Kind, Registered, Registry},
};
use testbed::drivers::{Behavior, CsiDriver, DraDriver, DraService};
use tokio::time::Instant;

use crate::{Root, made_at, secs};

const DRIVER: &str = "disk.example.com";
const GPU: &str = "gpu.example.com";

#[tokio::test(start_paused = true)]
async fn drivers_are_found_with_their_registration() {
    let root = Root::new();
    let disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let gpu = DraDriver::start(&root.path(), GPU, &[DraService::V1beta1, DraService::V1]).unwrap();
    made_at(disk.registration(), 1);
    made_at(gpu.registration(), 2);
    let registry = root.read().await;
    let expected = [
        Registered {
            kind: Some(Kind::Dra),
            name: GPU.to_owned(),
            endpoint: gpu.endpoint().to_owned(),
            versions: vec!["v1beta1.DRAPlugin".to_owned(), "v1.DRAPlugin".to_owned()],
            socket: gpu.registration().to_owned(),
        },
        Registered {
            kind: Some(Kind::Csi),
            name: DRIVER.to_owned(),
            endpoint: disk.endpoint().to_owned(),
            versions: vec!["1.0.0".to_owned()],
            socket: disk.registration().to_owned(),
        },
    ];
    assert_eq!(registry.registered, expected);
    assert_eq!((registry.unresponsive.len(), registry.faults.len()), (0, 0));
    assert_eq!(registry.csi(DRIVER).await, Ok(Csi::new(DRIVER, disk.endpoint())));
    let plugin = registry.dra(GPU).await.unwrap();
    assert_eq!(
        plugin.service, "v1beta1.DRAPlugin",
        "the first of the plugin's own list"
    );
    assert!(registry.csi(GPU).await.is_err() && registry.dra(DRIVER).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sockets_are_found_at_any_depth_but_not_links_files_or_hidden_ones() {
    let root = Root::new();
    let _disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let dir = root.registry();
    let registration = dir.join(format!("{DRIVER}-reg.sock"));
    for name in [".hidden.sock", "a/.hidden/reg.sock", "a/b/reg.sock"] {
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        // A second name of the same socket.
        fs::hard_link(&registration, dir.join(name)).unwrap();
    }
    symlink(&registration, dir.join("link.sock")).unwrap();
    symlink(&dir, dir.join("loop")).unwrap();
    fs::write(dir.join("file.sock"), "").unwrap();
    let registry = root.read().await;
    let mut found: Vec<_> = registry.registered.iter().map(|it| it.socket.clone()).collect();
    found.sort();
    assert_eq!(found, [dir.join("a/b/reg.sock"), registration]);
    assert_eq!((registry.unresponsive, registry.faults), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn crashed_driver_is_unavailable_until_it_listens_again() {
    let root = Root::new();
    let disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    disk.crash().await;
    let registry = root.read().await;
    assert_eq!(registry.registered, []);
    let error = &registry.unresponsive[0];
    assert!(
        error.is_unreachable() && error.to_string().contains(disk.registration().to_str().unwrap()),
        "{error}"
    );
    let unavailable = registry.csi(DRIVER).await.unwrap_err();
    assert_eq!(
        (unavailable.kind, &*unavailable.driver, unavailable.registry_dir.clone()),
        (Kind::Csi, DRIVER, root.registry())
    );
    let text = unavailable.to_string();
    let socket = format!("{:?}", disk.registration().display().to_string());
    for part in [DRIVER, &socket, "Connection refused", "once its pod runs here again"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    disk.come_back().unwrap();
    assert!(root.read().await.csi(DRIVER).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn driver_is_unavailable_even_if_its_registrar_runs() {
    let root = Root::new();
    let disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    fs::remove_file(disk.endpoint()).unwrap();
    let registry = root.read().await;
    assert_eq!(registry.registered.len(), 1);
    let unavailable = registry.csi(DRIVER).await.unwrap_err();
    let socket = format!("{:?} does not answer: No such file", disk.endpoint());
    assert!(unavailable.why.contains(&socket), "{unavailable}");
}

#[tokio::test(start_paused = true)]
async fn hanging_registrars_take_two_seconds_in_total() {
    let root = Root::new();
    let hanging: Vec<_> = (0..20)
        .map(|i| {
            let driver = CsiDriver::start(&root.path(), &format!("hangs-{i}.example.com")).unwrap();
            driver.introduces_itself(Behavior::Hangs);
            driver
        })
        .collect();
    // The kernel accepts connections, and no process reads from them.
    let _deaf = UnixListener::bind(root.registry().join("deaf.sock")).unwrap();
    let _disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let begun = Instant::now();
    let registry = root.read().await;
    assert_eq!(begun.elapsed(), secs(2));
    assert_eq!(registry.unresponsive.len(), hanging.len() + 1);
    for unresponsive in &registry.unresponsive {
        assert!(
            unresponsive.failure == CallFailure::Timeout(secs(2)),
            "{unresponsive:?}"
        );
    }
    assert!(registry.csi(DRIVER).await.is_ok(), "the others block no driver");
    let unavailable = registry.csi("other.example.com").await.unwrap_err().to_string();
    assert!(unavailable.contains("18 more sockets do not answer"), "{unavailable}");
}

#[tokio::test(start_paused = true)]
async fn newest_plugin_that_accepts_connections_is_called() {
    let root = Root::new();
    let start = |uid: &str, at| {
        let plugin = DraDriver::start_beside(&root.path(), GPU, uid, &[DraService::V1]).unwrap();
        made_at(plugin.registration(), at);
        plugin
    };
    let (old, new, older) = (start("u1", 20), start("u2", 30), start("u3", 10));
    let called = async || root.read().await.dra(GPU).await.map(|plugin| plugin.endpoint);
    assert_eq!(called().await.unwrap(), new.endpoint());
    let registry = root.read().await;
    new.crash().await;
    let plugin = registry.dra(GPU).await.unwrap();
    assert_eq!(plugin.endpoint, old.endpoint(), "it crashed after it was asked");
    assert_eq!(called().await.unwrap(), old.endpoint());
    old.crash().await;
    assert_eq!(called().await.unwrap(), older.endpoint());
    older.crash().await;
    assert!(called().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn driver_with_another_version_is_reported_and_not_called() {
    let root = Root::new();
    let disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let mut registry = root.read().await;
    let cases = [
        (&["0.3.0"][..], false),
        (&["0.3.0", "1.11.0"], true),
        (&["v1"], true),
        (&[], false),
        (&["10.0"], false),
    ];
    for (versions, spoken) in cases {
        registry.registered[0].versions = versions.iter().map(ToString::to_string).collect();
        assert_eq!(registry.csi(DRIVER).await.is_ok(), spoken, "{versions:?}");
    }
    registry.registered[0].versions = vec!["v2.DRAPlugin".to_owned()];
    registry.registered[0].kind = Some(Kind::Dra);
    let unavailable = registry.dra(DRIVER).await.unwrap_err();
    assert!(
        unavailable.why.contains("it supports only [\"v2.DRAPlugin\"]"),
        "{unavailable}"
    );
    registry.registered[0].versions.push("v1.DRAPlugin".to_owned());
    assert_eq!(registry.dra(DRIVER).await.unwrap().endpoint, disk.endpoint());
}

#[tokio::test(start_paused = true)]
async fn registry_may_be_missing_and_deep_directories_are_reported() {
    let root = Root::new();
    assert_eq!(
        (root.read().await.registered, root.read().await.faults),
        (vec![], vec![])
    );
    let disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let deep = root.registry().join("d/".repeat(30));
    fs::create_dir_all(deep).unwrap();
    let registry = root.read().await;
    assert!(
        registry.faults.iter().any(|fault| fault.cause == Cause::TooDeep),
        "{registry:?}"
    );
    assert_eq!(
        registry.registered[0].endpoint,
        disk.endpoint(),
        "the others are found anyway"
    );
}

#[tokio::test]
async fn registry_that_is_a_link_is_not_followed() {
    let root = Root::new();
    let _disk = CsiDriver::start(&root.path(), DRIVER).unwrap();
    let link = root.path().join("link");
    symlink(root.registry(), &link).unwrap();
    let fault = Registry::read(&link, &Effects::ungated()).await.unwrap_err();
    assert_eq!(fault.path, link);
    assert!(Dir::open(&root.registry()).unwrap().is_some());
}

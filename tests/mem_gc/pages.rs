//! The collector's page reader on pages of an API server.

use http::{Method, header};
use pod_teardown::collector::wire::PageReader;
use testbed::rest::Client;

use crate::prelude::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let client = Client::new(&api.url(), "admin", None).unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let owner =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "blockOwnerDeletion": true });
    for number in 0..7 {
        let metadata = json!({ "name": format!("map-{number}"), "ownerReferences": [owner] });
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
        client.create(path, &map).await.unwrap().ok().unwrap();
    }
    let (mut names, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let call = client.call(Method::GET, path).header(header::ACCEPT, PROTOBUF);
        let answer = call
            .options(&[("limit", "3"), ("continue", &token)])
            .send()
            .await
            .unwrap();
        let mut reader = PageReader::new(true);
        for piece in answer.bytes.chunks(11) {
            reader
                .read(piece, |object| {
                    assert_eq!(
                        (&*object.owners[0].api_version, object.owners[0].blocking),
                        ("apps/v1", true)
                    );
                    names.push(object.name);
                })
                .unwrap();
        }
        let end = reader.finish(|_| ()).unwrap();
        assert!(end.version > 0, "{end:?}");
        pages += 1;
        token = end.continue_token;
        if token.is_empty() {
            break;
        }
    }
    let expected: Vec<String> = (0..7).map(|number| format!("map-{number}")).collect();
    assert_eq!((names, pages), (expected, 3));
}

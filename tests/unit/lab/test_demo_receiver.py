from datetime import datetime, timezone

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from paceline.lab.demo.receiver import Receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    ("secret", "signed"), [(SECRET, True), ("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAA", False)]
)
async def test_receipt_says_whether_the_signature_fits(secret: str, signed: bool) -> None:
    receiver = Receiver()
    await receiver.start()
    receiver.secret = SECRET
    try:
        now = datetime.now(tz=timezone.utc)
        signature = Webhook(secret).sign("msg_1", now, '{"a":1}')
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signature,
        }
        async with httpx.AsyncClient() as client:
            answer = await client.post(receiver.url, content=b'{"a":1}', headers=headers)
    finally:
        await receiver.stop()

    assert answer.status_code == 204
    assert [(receipt.message_id, receipt.is_signed) for receipt in receiver.receipts] == [("msg_1", signed)]


async def test_garbage_is_dropped_and_the_next_post_is_served() -> None:
    receiver = Receiver()
    await receiver.start()
    try:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.HTTPError):
                await client.post(receiver.url, content=b"x", headers={"content-length": "nonsense"})
            assert (await client.post(receiver.url, content=b"y")).status_code == 204
    finally:
        await receiver.stop()
    assert [receipt.body for receipt in receiver.receipts] == [b"y"]

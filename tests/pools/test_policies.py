"""Every policy keeps the contract; what each does beyond it."""

import pytest

from tenuto.pools import POLICIES, make_policy
from tenuto.testing.policy_contract import PolicyContract

pytestmark = pytest.mark.unit


@pytest.mark.contract
class TestContract(PolicyContract):
    @pytest.fixture(autouse=True, params=sorted(POLICIES))
    def _choose(self, request):
        self.name = request.param

    def make_policy(self):
        return make_policy(self.name, "policy")

"""A kit for the tests of plugin authors.

    from disagg_run.testing import check_engine, plan_for

    def test_my_engine_keeps_the_contract():
        check_engine("my-disagg")                    # the installed entry point

    def test_my_flag_is_in_every_server():
        plan = plan_for(MyEngine(), model="my-model")  # no installation needed
        assert "--my-flag" in plan.process("prefill-0").argv

``installed_plugin`` makes a real, if tiny, distribution that ``importlib.metadata`` finds; the fixture
``install_plugin`` of ``disagg_run.testing.fixtures`` does it in ``tmp_path``. Only that fixture needs pytest.
"""

from __future__ import annotations

from disagg_run.testing.contract import ContractBroken, check_engine, contract_violations
from disagg_run.testing.distributions import FakeDistribution, installed_plugin
from disagg_run.testing.plans import host_for, plan_for

__all__ = [
    "ContractBroken",
    "FakeDistribution",
    "check_engine",
    "contract_violations",
    "host_for",
    "installed_plugin",
    "plan_for",
]

"""The leader (scheduler side) and worker (one per rank) halves, and the message pair between them.

Takes request views, block tables and step progress. Gives the step's plan, and what an engine must be told.
Never: imports an engine.
"""

from tenuto.connectors.session.endpoint import MetricsEndpoint
from tenuto.connectors.session.leader import Leader
from tenuto.connectors.session.messages import Handshake, Reset, StepPlan, WorkerReport
from tenuto.connectors.session.publishing import publish
from tenuto.connectors.session.setup import Setup
from tenuto.connectors.session.tracker import Progress, RequestView
from tenuto.connectors.session.worker import LoadNews, Worker

__all__ = [
    "Handshake",
    "Leader",
    "LoadNews",
    "MetricsEndpoint",
    "Progress",
    "RequestView",
    "Reset",
    "Setup",
    "StepPlan",
    "Worker",
    "WorkerReport",
    "publish",
]

"""The project's addresses: the login, also for the operator's page."""

from __future__ import annotations

from django.contrib.auth.views import LoginView
from django.urls import path

urlpatterns = [path("login/", LoginView.as_view())]
